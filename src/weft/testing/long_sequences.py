"""The central checks once more where a mechanism may switch to a kernel made for long sequences.

A planner rightly takes dense attention for a few dozen tokens, so the short checks would never see
the blocks that are used for thousands.
"""

from __future__ import annotations

from typing import Any

import torch

from weft.testing import cases
from weft.testing.cases import describe
from weft.testing.equality import compare_forward, compare_gradients
from weft.testing.invariance import compare_futures, compare_paddings, compare_prefixes
from weft.testing.streaming import feed
from weft.testing.tolerance import assert_close


def check_long_sequences(config: Any, *, length: int = 700, device: str = "cpu") -> None:
    """Values, gradients, padding, causality and decoding hold at a length of several blocks."""
    half = length // 2
    for frame in cases.frames(config, dim=16, heads=2, length=length):
        mixer = cases.build(config, frame, device=device)
        compare_forward(mixer, length, device)
        compare_gradients(mixer, length, device)
        compare_paddings(mixer, [length, half, 1, 0], device)
        if not frame.causal:
            continue
        compare_prefixes(mixer, length, (half, length - 1), device)
        single = cases.build(config, frame, torch.float32, device)
        compare_futures(single, length, (1, 127, 128, 129, half, length - 1), device)
        if config.traits.state is not None:
            x = cases.tokens(1, length, frame.dim, device=device)
            with torch.no_grad():
                y, _ = feed(mixer, x, [half, length - half - 2, 1, 1])
                what = describe(config, frame, f"n={length} in pieces: step and forward")
                assert_close(y, mixer(x), what)
