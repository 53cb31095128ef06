"""Every mechanism at lengths up to 65,536 against the truth, in float64.

    python tests/campaigns/lengths.py [--mixer full ...] [--gib 16] [--seconds 150]

Lengths grow until the reference no longer fits into memory or time; the row says how far that was.
Many references need n² numbers; for plain attention under a pattern, rows of attention are written
down one query at a time instead, at the first and last tokens, around the edges of blocks, and at
random.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from weft.mixers import MIXERS, Frame
from weft.mixers.base.under_pattern import PatternAttention
from weft.testing import cases
from weft.testing.tolerance import assert_close, assert_finite

LENGTHS = (1024, 4096, 16384, 32768, 65536)
TOLERANCE = 1e-9
ROWS = 48  # queries whose attention is written down


def compared(name: str, causal: bool, longest: int, seconds: float) -> dict[str, Any]:
    """The largest length that was compared, and how; raises where the two part."""
    row: dict[str, Any] = {"mixer": name, "causal": causal, "length": 0}
    signal.signal(signal.SIGALRM, _over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    began = time.monotonic()
    try:
        for length in LENGTHS:
            if length <= longest:
                truth = at(MIXERS[name](), causal, length)
                row |= {"length": length, "truth": truth, "seconds": time.monotonic() - began}
    except TimeoutError:
        row["stopped"] = f"over {seconds:g} s"
    except (RuntimeError, MemoryError) as error:
        if not any(word in str(error).lower() for word in ("allocate", "memory")):
            raise
        row["stopped"] = "memory"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert row["length"], f"not even {LENGTHS[0]} tokens were compared: {row['stopped']}"
    return row


def _over(number: int, frame: object) -> None:
    raise TimeoutError


@torch.no_grad()
def at(config: Any, causal: bool, n: int) -> str:
    """Compare at n tokens, padded: the last twentieth of the row is not real."""
    frame = Frame(dim=8, heads=1, length=n, causal=causal)
    what = cases.describe(config, frame, f"n={n}")
    mixer, x = cases.build(config, frame), cases.tokens(1, n, frame.dim)
    real = n - n // 20
    valid = cases.lengths_mask([real], n)
    rows = torch.tensor(sorted(set(some_rows(real)))) if plain_pattern(mixer) else None
    y = mixer(x, valid=valid)
    assert_finite(y, what)
    assert not y[~valid].any(), f"{what}: padding does not yield 0"
    if rows is None:
        assert_close(y[valid], mixer.reference(x, valid)[valid], what, TOLERANCE)
        return "reference, all rows"
    assert_close(y[:, rows], rows_of(mixer, x, real, rows), what, TOLERANCE)
    return f"attention of {len(rows)} rows"


def some_rows(n: int) -> Iterator[int]:
    """The first, the last, edges of blocks, and random ones."""
    yield from (0, 1, 63, 64, 127, 128, 129, n // 2 - 1, n // 2, n - 129, n - 128, n - 2, n - 1)
    yield from torch.randint(n, (ROWS - 13,), generator=torch.Generator().manual_seed(n)).tolist()


def plain_pattern(mixer: Any) -> bool:
    """Whether the mechanism is softmax attention under its pattern and nothing else."""
    own = type(mixer)
    return (
        isinstance(mixer, PatternAttention)
        and own.reference is PatternAttention.reference
        and own.plain_attention is PatternAttention.plain_attention
        and own.plain_scores is PatternAttention.plain_scores
    )


def rows_of(mixer: Any, x: Tensor, real: int, rows: Tensor) -> Tensor:
    """softmax(q_i · K) V over the real keys that the pattern shows to i, for these rows."""
    n = x.shape[1]
    q, k, v = (part[:, :, :real] for part in mixer.heads(x))  # (1, 1, n, d)
    seen = mixer.pattern.head(0, 1).sees(rows[:, None], torch.arange(real)[None, :], n)  # (r, n)
    scores = q[:, :, rows] @ k.transpose(-1, -2) * mixer.frame.head_dim**-0.5
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
    return mixer.project.out(weights @ v)


def directions(name: str) -> list[bool]:
    """Whether it is asked about causal, bidirectional or both."""
    return [frame.causal for frame in cases.frames(MIXERS[name]())]


def main() -> int:
    """Compare mechanisms, a line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=LENGTHS[-1])
    parser.add_argument("--seconds", type=float, default=150, help="for each direction")
    parser.add_argument("--mixer", action="append", choices=[*MIXERS])
    parser.add_argument("--gib", type=float, default=16.0, help="of memory for a process")
    given = parser.parse_args()
    limit = int(given.gib * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    bad = 0
    for name in given.mixer or MIXERS:
        for causal in directions(name):
            try:
                row = compared(name, causal, given.length, given.seconds)
            except Exception as error:
                bad += 1
                row = {"mixer": name, "causal": causal, "broken": f"{error!r}"[:400]}
            print(json.dumps(row), flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
