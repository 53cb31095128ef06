"""The Universal Transformer: one block, applied repeatedly until each token halts.

    h_t = block(h_(t−1) + signal_t),    p_t = σ(w · h_t + b)      for a token that still runs
    it halts at the first t with p_1 + ... + p_t ≥ 1 − ε, or t = steps; its last weight is the rest,
    R = 1 − (p_1 + ... + p_(t−1)), so that weights sum to 1
    out = Σ_t weight_t h_t,    penalty = ponder · mean over tokens of (N + R),  N the steps it ran

A token that has halted keeps its state, which others go on reading. The signal tells the steps
apart: a sinusoid of the position plus one of the step (the paper's), or a learned vector per step,
which starts as N(0, 0.02). b starts at 1. `adaptive=False` runs all steps and returns the last
state.

Time: a forward ends when every token has halted. Decoding runs all steps for each new token, since
later tokens may read it at any step; it keeps a state for each step of each sublayer.

Papers: Dehghani et al. 2018, https://arxiv.org/abs/1807.03819; adaptive computation time, Graves
2016, https://arxiv.org/abs/1603.08983
Differs from it: the halting unit reads the state after the step, and the step's block is any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from weft.errors import WeftError
from weft.layers.embedding import sinusoid
from weft.models.stack.depth import DEPTHS, Passage, PassageInputs, Through


@DEPTHS.register("universal")
@dataclass(frozen=True, kw_only=True)
class Universal:
    """The whole order up to `steps` times, with the same parameters, until each token halts."""

    steps: int = 6
    adaptive: bool = True  # tokens halt by themselves
    epsilon: float = 0.01  # what may be missing from 1 when a token halts
    ponder: float = 0.01  # price of a step
    signal: Literal["sinusoidal", "learned"] = "sinusoidal"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise WeftError(f"the block runs at least once; got steps={self.steps}")
        if not 0.0 <= self.epsilon < 1.0:
            raise WeftError(f"epsilon is what may be missing from 1; got epsilon={self.epsilon}")
        if self.ponder < 0:
            raise WeftError(f"ponder is the price of a step, 0 or more; got ponder={self.ponder}")

    @property
    def repeats(self) -> int:
        """How often the order runs at most."""
        return self.steps

    def build(self, dim: int, layers: list[list[nn.Module]], causal: bool) -> UniversalPassage:
        return UniversalPassage(self, dim)


class UniversalPassage(Passage):
    """Steps with signals, and a halting unit."""

    def __init__(self, config: Universal, dim: int) -> None:
        super().__init__(config.steps)
        self.config = config
        self.signals = None
        if config.signal == "learned":
            self.signals = nn.Parameter(0.02 * torch.randn(config.steps, dim))
        self.to_halt = None
        if config.adaptive:
            self.to_halt = nn.Linear(dim, 1)
            nn.init.ones_(self.to_halt.bias)
        self.cost: Tensor | None = None  # of the last forward in training
        self.taken: Tensor | None = None  # (b, n): steps of each token in the last forward

    def penalty(self) -> Tensor | None:
        """The ponder cost of the last forward in training."""
        return self.cost

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "cost": None}  # it belongs to a graph, which cannot be copied

    def forward(self, x: Tensor, through: Through, given: PassageInputs) -> Tensor:
        """(b, n, c) -> (b, n, c)."""
        valid, position = given.valid, given.position
        where = None if self.signals is not None else _positions(x, valid, position or 0)
        if self.to_halt is None:
            for t in range(self.layers):
                x = through(x + self.signal(t, x, where), t)
            return x
        halting = _Halting(x, valid)
        for t in range(self.layers):
            y = through(halting.h + self.signal(t, x, where), t)
            h = torch.where(halting.running[..., None], y, halting.h)  # (b, n, c)
            work = torch.promote_types(h.dtype, torch.float32)
            p = self.to_halt(h).to(work).sigmoid()[..., 0]  # (b, n)
            halting.take(h, p, self.config.epsilon, last=t == self.layers - 1)
            if position is None and halting.over():
                break
        self.taken = halting.count.detach()
        if self.training and position is None:
            self.cost = self.config.ponder * halting.cost(valid)
        return halting.out.to(x.dtype)

    def signal(self, step: int, x: Tensor, where: Tensor | None) -> Tensor:
        """The embedding of this step and position: (c) or (b, n, c)."""
        if self.signals is not None:
            return self.signals[step].to(x.dtype)
        assert where is not None  # without learned signals positions are always given
        number = torch.full((1, 1), step, device=x.device)
        return (sinusoid(where, x.shape[-1]) + sinusoid(number, x.shape[-1])).to(x.dtype)


class _Halting:
    """Who still runs, and the weighted sum of states so far."""

    def __init__(self, x: Tensor, valid: Tensor | None) -> None:
        work = torch.promote_types(x.dtype, torch.float32)
        self.h = x
        self.running = torch.ones_like(x[..., 0], dtype=torch.bool) if valid is None else valid
        self.out = torch.zeros_like(x, dtype=work)  # (b, n, c)
        self.total = self.out[..., 0].clone()  # (b, n): p_1 + ... so far
        self.rest = self.total.clone()  # (b, n): R of tokens that have halted
        self.count = self.total.clone()  # (b, n): N

    def take(self, h: Tensor, p: Tensor, epsilon: float, last: bool) -> None:
        """The states h (b, n, c) of a step and their p (b, n)."""
        ends = self.running & (self.total + p >= 1 - epsilon)
        ends = self.running if last else ends
        goes_on = self.running & ~ends
        rest = torch.where(ends, 1 - self.total, 0.0)
        step = torch.where(goes_on, p, 0.0)
        self.h = h
        self.out = self.out + (rest + step)[..., None] * h
        self.rest, self.total = self.rest + rest, self.total + step
        self.count = self.count + self.running
        self.running = goes_on

    def over(self) -> bool:
        """Whether all have halted; where Python cannot know, no."""
        if torch.compiler.is_compiling() or self.out.is_meta:
            return False
        if self.out.is_cuda and torch.cuda.is_current_stream_capturing():
            return False
        return not bool(self.running.any())

    def cost(self, valid: Tensor | None) -> Tensor:
        """The mean of N + R over real tokens: ()."""
        each = self.count + self.rest  # (b, n), 0 at padding
        return each.mean() if valid is None else each.sum() / valid.sum().clamp(min=1)


def _positions(x: Tensor, valid: Tensor | None, start: int) -> Tensor:
    """How many real tokens come before each: (1, n) or (b, n)."""
    if valid is None:
        return torch.arange(start, start + x.shape[1], device=x.device)[None]
    return valid.cumsum(1) - valid.long()
