"""Random forwards of random mechanisms at extreme values, with padding that is not finite.

    python tests/campaigns/forwards.py --count 2000 --seed 1

Each draws a mechanism, a variant of it, a frame, a length, a size of the inputs, and which tokens
are real (rows may be empty); padding holds NaN, infinity or the largest number. In float64, the
output equals the reference, is finite, is 0 at padding, and is the same in pieces.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from typing import Any

import torch

from weft.mixers import MIXERS
from weft.testing import cases, variants
from weft.testing.scale import _tolerance
from weft.testing.streaming import feed
from weft.testing.tolerance import assert_close, assert_finite

SIZES = (1e-6, 1e-2, 1.0, 1.0, 3.0, 10.0, 50.0)
MOST_TOKENS = 400


def one(draw: random.Random, name: str) -> str:
    """A forward of this mechanism; what was drawn. Raises where a promise is broken."""
    config = draw.choice([*variants(MIXERS[name])])
    frame = draw.choice([*cases.frames(config, length=MOST_TOKENS), *cases.framings(config)])
    most = MOST_TOKENS if frame.length is None else min(frame.length, MOST_TOKENS)
    n = min(most, int(2 ** draw.uniform(0, 8.7)))
    size, seed = draw.choice(SIZES), draw.randrange(2**31)
    what = cases.describe(config, frame, f"n={n}, size {size:g}, draw {seed}")
    check(config, frame, n, size, seed, what)
    return what


@torch.no_grad()
def check(config: Any, frame: Any, n: int, size: float, seed: int, what: str) -> None:
    """Forward, padded forward and forward in pieces against the reference."""
    torch.manual_seed(seed)
    mixer = cases.build(config, frame)
    x = torch.randn(3, n, frame.dim, dtype=torch.float64) * size
    valid = torch.rand(3, n) < torch.tensor([[1.1], [0.5], [0.9]])
    valid[int(torch.randint(3, ()))] &= torch.rand(()) < 0.5  # now and then a row is empty
    content = cases.NOT_NUMBERS[int(torch.randint(len(cases.NOT_NUMBERS), ()))]
    loud = x.masked_fill(~valid[..., None], content)
    quiet = x.masked_fill(~valid[..., None], 0.0)
    truth = mixer.reference(x)
    tolerance = _tolerance(mixer, x, truth)
    ours = mixer(x)
    assert_finite(ours, what)
    assert_close(ours, truth, what, tolerance)
    padded = mixer(loud, valid=valid)
    assert_finite(padded, f"{what}, padding holds {content}")
    assert not padded[~valid].any(), f"{what}: padding does not yield 0"
    alone(mixer, quiet, valid, padded, f"{what}, padded", tolerance)
    if frame.causal and config.traits.state is not None and n > 2:
        cut = int(torch.randint(1, n - 1, ()))
        pieces, _ = feed(mixer, x, [cut, 1, n - cut - 1])
        assert_close(pieces, ours, f"{what}: in pieces", tolerance)


def alone(mixer: Any, x: Any, valid: Any, padded: Any, what: str, tolerance: float) -> None:
    """Each row of a padded batch is the reference of its real tokens alone."""
    for row in range(len(x)):
        if valid[row].any():
            real = x[row : row + 1, valid[row]]
            truth = mixer.reference(real)
            room = max(tolerance, _tolerance(mixer, real, truth))
            assert_close(padded[row : row + 1, valid[row]], truth, what, room)


def campaign(count: int, seed: int) -> dict[str, Any]:
    """How many held, and what did not."""
    draw, names = random.Random(seed), [*MIXERS]
    found: dict[str, Any] = {"forwards": 0, "broken": [], "mechanisms": Counter()}
    for number in range(count):
        name = names[(number + seed) % len(names)]
        try:
            one(draw, name)
        except Exception as error:
            found["broken"].append(f"{name}: {type(error).__name__}: {str(error)[:400]}")
        found["forwards"] += 1
        found["mechanisms"][name] += 1
    return found


def main() -> int:
    """Run, print the figures and what is broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    found = campaign(given.count, given.seed)
    print(json.dumps(found, indent=1))
    return int(bool(found["broken"]))


if __name__ == "__main__":
    sys.exit(main())
