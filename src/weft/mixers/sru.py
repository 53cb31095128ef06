"""SRU: a recurrence whose matrices never wait for the state, so all of them run at once.

    f = σ(W_f x_t + v_f c_(t−1) + b_f),    r = σ(W_r x_t + v_r c_(t−1) + b_r)
    c_t = f c_(t−1) + (1 − f) W x_t,       h_t = r c_t + (1 − r) α x_t

Only products of single channels go from token to token. With `peephole` off (v = 0) the recurrence
is linear, and c of all tokens comes in log₂ n parallel passes. With `rescale` α = √(1 + 2 exp(b)),
b being the value that b_r starts from, else 1. Both ways, a second one runs from the right.
Time O(n c²), memory O(n c). With the peephole n small steps forward, one kernel on a GPU, but none
back: its gradient is a linear recurrence (`kernels/recurrence/scan.py`). Decoding keeps c.

Paper: Lei et al. 2017, sections 2 and 3, https://arxiv.org/abs/1709.02755
Differs from it: a projection follows, which also joins the directions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from weft.kernels.recurrence.scan import elementwise_scan, linear_scan
from weft.kernels.recurrence.triton import fused_sru
from weft.mixers.base import MIXERS, Frame, Traits
from weft.mixers.base.recurrent import (
    Memory,
    RecurrentCell,
    RecurrentMixer,
    recurrent_traits,
)


@MIXERS.register("sru")
@dataclass(frozen=True, kw_only=True)
class SRU:
    """Simple recurrent unit."""

    peephole: bool = True  # gates see the state before them; without it, tokens run in parallel
    highway_bias: float = 0.0  # what b_r starts from: below 0, x passes more freely
    rescale: bool = False  # scale x in the highway, so that depth keeps its variance

    traits: ClassVar[Traits] = recurrent_traits(
        "Lei et al. 2017, https://arxiv.org/abs/1709.02755",
        state="c",
        graph="as one graph it would unroll over the tokens",
    )

    def cell(self, frame: Frame) -> SRUCell:
        """One direction."""
        return SRUCell(self, frame.dim)

    def build(self, frame: Frame) -> RecurrentMixer:
        return RecurrentMixer(self, frame)

    @classmethod
    def variants(cls) -> tuple[SRU, ...]:
        """Settings that the contract suite tests."""
        return cls(), cls(peephole=False, highway_bias=-1.0, rescale=True)


class SRUCell(RecurrentCell):
    """W x of all tokens at once, then the scan."""

    def __init__(self, config: SRU, dim: int) -> None:
        super().__init__()
        self.peephole = config.peephole
        self.scale = math.sqrt(1 + 2 * math.exp(config.highway_bias)) if config.rescale else 1.0
        self.to_gates = nn.Linear(dim, 3 * dim, bias=False)
        bound = (3.0 / dim) ** 0.5
        nn.init.uniform_(self.to_gates.weight, -bound, bound)
        self.bias = nn.Parameter(torch.tensor([0.0, config.highway_bias]).repeat_interleave(dim))
        if config.peephole:
            self.state_weight = nn.Parameter(torch.empty(2 * dim).uniform_(-bound, bound))

    def start(self, batch: int) -> Memory:
        """c is 0, in float32 or wider."""
        work = torch.promote_types(self.bias.dtype, torch.float32)
        return (self.bias.new_zeros(batch, len(self.bias) // 2, dtype=work),)

    def forward(self, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Tokens (b, n, c), c channel by channel."""
        c0 = memory[0]
        new, f, r = self.to_gates(x).to(c0.dtype).chunk(3, dim=-1)  # (b, n, c)
        bias_f, bias_r = self.bias.to(c0.dtype).chunk(2)
        f, r = f + bias_f, r + bias_r
        if self.peephole:
            weight_f, weight_r = self.state_weight.to(c0.dtype).chunk(2)
            c = elementwise_scan(_remember, (new, f), c0, (weight_f,), fused_sru)
            r = r + weight_r * torch.cat((c0[:, None], c[:, :-1]), dim=1)
        else:
            forget = torch.sigmoid(f)
            c = linear_scan(forget, (1 - forget) * new, c0)
        y = torch.lerp(x.to(c.dtype) * self.scale, c, torch.sigmoid(r))
        return y.to(x.dtype), (c[:, -1].clone(),)

    def plain(self, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The equation."""
        (c,) = memory
        new, f, r = (x @ part.T for part in self.to_gates.weight.chunk(3))
        bias_f, bias_r = self.bias.chunk(2)
        weight_f, weight_r = self.state_weight.chunk(2) if self.peephole else (0.0, 0.0)
        f, r = torch.sigmoid(f + weight_f * c + bias_f), torch.sigmoid(r + weight_r * c + bias_r)
        c = f * c + (1 - f) * new
        return r * c + (1 - r) * self.scale * x, (c,)


def _remember(now: tuple[Tensor, ...], c: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
    """c_t from (W x_t, W_f x_t + b_f) and c_(t−1)."""
    return torch.lerp(now[0], c, torch.sigmoid(torch.addcmul(now[1], weights[0], c)))
