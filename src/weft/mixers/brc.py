"""BRC: a cell with two stable states, which can remember a bit for as long as it likes.

    a = 1 + tanh(U_a x_t + w_a h + b_a),    c = σ(U_c x_t + w_c h + b_c)
    h_t = c h + (1 − c) tanh(U x_t + a h),    h = h_(t−1)

Where a > 1 the state of a channel is bistable. w_a and w_c are vectors, channel by channel; with
`neuromodulated` they are matrices, and channels govern each other (nBRC).
Both ways, a second one runs from the right (`base/recurrent.py`).
Time O(n c²), one token after another; memory O(n c). The gradient of the plain cell is parallel
(`kernels/recurrence/scan.py`), and its steps are one kernel on a GPU; nBRC has a product with a
matrix between two tokens, and calls for each. Decoding keeps h.

Paper: Vecoven et al. 2020, section 3, https://arxiv.org/abs/2006.05252
Differs from it: a projection follows, which also joins the directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from weft.kernels.recurrence.scan import elementwise_scan, scan
from weft.kernels.recurrence.triton import fused_brc
from weft.mixers.base import MIXERS, Frame, Traits
from weft.mixers.base.recurrent import (
    Memory,
    RecurrentCell,
    RecurrentMixer,
    recurrent_traits,
)


@MIXERS.register("brc")
@dataclass(frozen=True, kw_only=True)
class BRC:
    """Bistable recurrent cell."""

    neuromodulated: bool = False  # channels govern each other: w_a and w_c are matrices

    traits: ClassVar[Traits] = recurrent_traits(
        "Vecoven et al. 2020, https://arxiv.org/abs/2006.05252",
        state="c",
        graph="as one graph it would unroll over the tokens",
    )

    def cell(self, frame: Frame) -> BRCCell:
        """One direction."""
        return BRCCell(self, frame.dim)

    def build(self, frame: Frame) -> RecurrentMixer:
        return RecurrentMixer(self, frame)


class BRCCell(RecurrentCell):
    """U x of all tokens at once, then one token after another."""

    def __init__(self, config: BRC, dim: int) -> None:
        super().__init__()
        self.neuromodulated = config.neuromodulated
        self.to_gates = nn.Linear(dim, 3 * dim, bias=False)
        for part in self.to_gates.weight.data.chunk(3):
            nn.init.xavier_uniform_(part)
        self.bias = nn.Parameter(torch.zeros(2 * dim))  # a, then c
        if config.neuromodulated:
            memory = [nn.init.orthogonal_(torch.empty(dim, dim)) for _ in range(2)]
            self.memory = nn.Parameter(torch.cat(memory, dim=1))  # (c, 2c)
        else:
            self.memory = nn.Parameter(torch.ones(2 * dim))

    def start(self, batch: int) -> Memory:
        """h is 0, in float32 or wider."""
        work = torch.promote_types(self.bias.dtype, torch.float32)
        return (self.bias.new_zeros(batch, len(self.bias) // 2, dtype=work),)

    def forward(self, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Tokens (b, n, c)."""
        (h0,), dim = memory, len(self.bias) // 2
        gates, new = self.to_gates(x).to(h0.dtype).split((2 * dim, dim), dim=-1)
        gates = gates + self.bias.to(h0.dtype)
        weights = (self.memory.to(h0.dtype),)
        if self.neuromodulated:
            h = scan(_modulated, (gates, new), h0, weights)
        else:
            h = elementwise_scan(_alone, (gates, new), h0, weights, fused_brc)
        return h.to(x.dtype), (h[:, -1].clone(),)

    def plain(self, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The equation."""
        h = memory[0].to(x.dtype)
        to_a, to_c, to_new = (x @ part.T for part in self.to_gates.weight.chunk(3))
        w_a, w_c = self.memory.chunk(2, dim=-1)
        bias_a, bias_c = self.bias.chunk(2)
        old_a, old_c = (h @ w_a, h @ w_c) if self.neuromodulated else (h * w_a, h * w_c)
        a = 1 + torch.tanh(to_a + old_a + bias_a)
        c = torch.sigmoid(to_c + old_c + bias_c)
        h = c * h + (1 - c) * torch.tanh(to_new + a * h)
        return h, (h,)


def _alone(now: tuple[Tensor, ...], h: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
    """h_t where each channel governs itself."""
    return _settled(torch.addcmul(now[0], torch.cat((h, h), dim=-1), weights[0]), now[1], h)


def _modulated(now: tuple[Tensor, ...], h: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
    """h_t where channels govern each other."""
    return _settled(torch.addmm(now[0], h, weights[0]), now[1], h)


def _settled(gates: Tensor, new: Tensor, h: Tensor) -> Tensor:
    """c h + (1 − c) tanh(U x + a h), before the squashing of a and c."""
    a, c = gates.chunk(2, dim=-1)
    return torch.lerp(torch.tanh(torch.addcmul(new + h, torch.tanh(a), h)), h, torch.sigmoid(c))
