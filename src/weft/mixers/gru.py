"""GRU: one state, an update gate and a reset gate, from token to token.

    r = σ(W_r x_t + b_r + U_r h + b'_r),    z = σ(W_z x_t + b_z + U_z h + b'_z)
    h_t = (1 − z) tanh(W_n x_t + b_n + r (U_n h + b'_n)) + z h,    h = h_(t−1)

Both ways, a second one runs from the right (`base/recurrent.py`).
Time O(n c²), one token after another; memory O(n c). Decoding keeps h.

Paper: Cho et al. 2014, section 2.3, https://arxiv.org/abs/1406.1078
Differs from it: the reset gate acts after the product with U_n, and z weighs the past, as in cuDNN;
it runs on torch's fused GRU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.kernels.recurrence.triton import torch_rnn
from weft.mixers.base import MIXERS, Frame, Traits
from weft.mixers.base.recurrent import (
    Memory,
    RecurrentCell,
    RecurrentMixer,
    recurrent_traits,
)


@MIXERS.register("gru")
@dataclass(frozen=True, kw_only=True)
class GRU:
    """Gated recurrent unit."""

    traits: ClassVar[Traits] = recurrent_traits(
        "Cho et al. 2014, https://arxiv.org/abs/1406.1078",
        state="c",
        graph="torch's fused one cannot be part of a graph",
    )

    def cell(self, frame: Frame) -> GRUCell:
        """One direction."""
        return GRUCell(frame.dim, frame.bias)

    def build(self, frame: Frame) -> RecurrentMixer:
        return RecurrentMixer(self, frame)


class GRUCell(RecurrentCell):
    """torch's GRU of one layer."""

    def __init__(self, dim: int, bias: bool) -> None:
        super().__init__()
        self.dim = dim
        self.rnn = nn.GRU(dim, dim, bias=bias, batch_first=True)

    def start(self, batch: int) -> Memory:
        """h is 0."""
        return (self.rnn.all_weights[0][1].new_zeros(batch, self.dim),)

    def forward(self, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """All tokens by one call."""
        return torch_rnn(torch.gru, x, memory, self.rnn.all_weights[0])

    def plain(self, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The equation."""
        (h,), (w_x, w_h, *biases) = memory, self.rnn.all_weights[0]
        b_x, b_h = biases or (None, None)
        new = F.linear(x, w_x, b_x).chunk(3, dim=-1)
        old = F.linear(h, w_h, b_h).chunk(3, dim=-1)
        r, z = torch.sigmoid(new[0] + old[0]), torch.sigmoid(new[1] + old[1])
        h = (1 - z) * torch.tanh(new[2] + r * old[2]) + z * h  # (b, c)
        return h, (h,)
