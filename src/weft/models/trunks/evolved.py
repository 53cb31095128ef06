"""The Evolved Transformer: cells found by search, as settings of a stack.

    encoder cell   gate · convolutions · self-attention · feed-forward (relu)
    decoder cell   self-attention ‖ attention to the context · convolutions · self-attention
                   · attention to the context · feed-forward (silu)

‖ runs both in parallel (letter 'p'), with twice the heads of the others. Convolutions are the mixer
`evolved_convolution`, the gate is the feed-forward `gate`; each part has its residual connection
and norm. A decoder without a context leaves out what reads it. A cell is about as large as two
layers.

Paper: So et al. 2019, figure 3, https://arxiv.org/abs/1901.11117
Differs from it: the first attention of a decoder cell has twice the heads at the same width of a
head, where the paper halves that width; norms stand where the stack's config says, before or after.
"""

from __future__ import annotations

from typing import Any

from weft.errors import WeftError
from weft.feedforward import Dense, Gate
from weft.mixers import EvolvedConvolution


def evolved_encoder(cells: int, mixer: Any = "full") -> dict[str, Any]:
    """Settings for `Stack(frame=..., **evolved_encoder(3))`."""
    _check(cells)
    return {
        "order": "fssf" * cells,
        "mixer": (EvolvedConvolution(), mixer) * cells,
        "feedforward": (Gate(), Dense(activation="relu")) * cells,
    }


def evolved_decoder(
    cells: int, heads: int, mixer: Any = "full", *, context: bool = True
) -> dict[str, Any]:
    """Settings for the stack of a decoder whose frame has `heads`; `context`: it reads one."""
    _check(cells)
    return {
        "order": ("psscf" if context else "sssf") * cells,
        "mixer": (mixer, EvolvedConvolution(), mixer) * cells,
        "feedforward": Dense(activation="silu"),
        "layer_heads": (2 * heads, heads, heads) * cells,
    }


def _check(cells: int) -> None:
    if cells < 1:
        raise WeftError(f"a stack has at least one cell; got cells={cells}")
