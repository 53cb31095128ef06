"""Checks at large activations and large parameters, where exponentials overflow or vanish.

Trained models reach inputs and weights many times as large as a fresh one's. A shift that is right
at scale 1 may underflow at scale 50 and give finite, wrong numbers. The truth is the reference,
which for this reason takes sums of exponentials through their logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from weft.mixers.base import Mixer
from weft.testing import cases
from weft.testing.cases import describe
from weft.testing.streaming import feed
from weft.testing.tolerance import assert_close

SCALES = (1, 10, 50)
# A score of size s rounds by s·2⁻⁵³, which a softmax hands on to the values.
SCALED_TOLERANCE = 1e-8
# A recurrence with large weights multiplies rounding at every step: the truth itself moves when its
# inputs do by their last bit, and each step of another order of summation adds as much again.
LAST_BIT, SENSITIVITY_FACTOR = 2.0**-52, 100.0


def check_scale(
    config: Any, *, scales: Sequence[int] = SCALES, length: int = 37, device: str = "cpu"
) -> None:
    """`forward`, its gradient and `step` follow `reference` at inputs or parameters this large."""
    for frame in cases.frames(config, length=max(length, cases.LONGEST)):
        for scale in scales:
            mixer = cases.build(config, frame, device=device)
            compare_scaled(mixer, length, scale, f"inputs × {scale}", device)
            # Gradients of a deep mechanism with such weights explode, and so does their rounding.
            with torch.no_grad():
                for parameter in mixer.parameters():
                    parameter.mul_(scale)
                compare_scaled(mixer, length, 1, f"parameters × {scale}", device)


def compare_scaled(mixer: Mixer, n: int, scale: int, detail: str, device: str) -> None:
    """`forward` and `reference` at n tokens of this size, padded and not, and in pieces."""
    x = (cases.tokens(2, n, mixer.frame.dim, device=device) * scale).requires_grad_()
    valid = cases.lengths_mask([n, (n + 1) // 2], n, device)
    what = describe(mixer.config, mixer.frame, f"n={n}, {detail}")
    truth, ours = mixer.reference(x), mixer(x)
    tolerance = _tolerance(mixer, x, truth)
    assert_close(ours, truth, f"{what}: forward and reference", tolerance)
    if torch.is_grad_enabled():
        wanted = cases.tokens(*x.shape, device=device, seed=1)
        expected, found = (torch.autograd.grad((y * wanted).sum(), x)[0] for y in (truth, ours))
        assert_close(found, expected, f"{what}: gradient of x", SCALED_TOLERANCE)
    with torch.no_grad():
        padded, plain = mixer(x, valid=valid), mixer.reference(x, valid)
        assert_close(padded[valid], plain[valid], f"{what}, padded", tolerance)
        if mixer.frame.causal and mixer.config.traits.state is not None:
            pieces, _ = feed(mixer, x, [n // 2, 1, n - n // 2 - 2, 1])
            assert_close(pieces, ours, f"{what}: step and forward", tolerance)


@torch.no_grad()
def _tolerance(mixer: Mixer, x: Tensor, truth: Tensor) -> float:
    """Relative: at least SCALED_TOLERANCE; more where the truth hangs on the last bit of x."""
    moved = mixer.reference(x * (1 + LAST_BIT * torch.randn_like(x).sign()))
    change = float((moved - truth).abs().max()) / max(1.0, float(truth.abs().max()))
    return max(SCALED_TOLERANCE, SENSITIVITY_FACTOR * change)
