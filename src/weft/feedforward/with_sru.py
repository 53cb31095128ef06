"""A feed-forward plus a small recurrence.

    y = inner(x) + W_out u,    u_t = r_t ∘ c_t + (1 − r_t) ∘ √3 z_t,    z = W_in norm(x)
    c_t = f_t ∘ c_(t−1) + (1 − f_t) ∘ (W z_t + b),    f_t, r_t = σ(W_f z_t + b_f), σ(W_r z_t + b_r)

`units` channels, 32 in the paper, run from left to right: tokens read what came before them even
where attention is approximate. The gates depend on z alone, so c of all tokens takes log₂ n
parallel passes (`kernels/recurrence/scan.py`). A padded token changes nothing: there f = 1. Time
O(n c units), decoding stores c: `units` numbers. It reads earlier tokens, so permuted training,
which changes their order, is refused.

Paper: Jaszczur et al. 2021, section 5 (Terraformer), https://arxiv.org/abs/2111.12763; the unit:
Lei et al. 2017, https://arxiv.org/abs/1709.02755
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from weft.errors import WeftError
from weft.feedforward.base import (
    FEEDFORWARDS,
    FeedForward,
    FeedForwardConfig,
    FeedForwardTraits,
)
from weft.kernels.recurrence.scan import linear_scan
from weft.layers.state import State


@FEEDFORWARDS.register("with_sru")
@dataclass(frozen=True, kw_only=True)
class WithSRU:
    """Another feed-forward, and a recurrence added to it."""

    inner: FeedForwardConfig = field(default_factory=lambda: FEEDFORWARDS.make("dense"))
    units: int = 32  # channels of the recurrence

    traits = FeedForwardTraits(
        summary="another feed-forward, and a narrow recurrence (SRU) added to its result",
        paper="Jaszczur et al. 2021, https://arxiv.org/abs/2111.12763",
        parameters="those of `inner`, 2·c·units + 3·units²",
        time="that of `inner`, 2·c·units + 3·units²",
        tokenwise=False,
        tensor="inside",
    )

    def __post_init__(self) -> None:
        if isinstance(self.inner, WithSRU):
            raise WeftError(f"one recurrence stands beside a feed-forward; got inner={self.inner}")
        if self.units < 1:
            raise WeftError(f"units is at least 1; got units={self.units}")

    def build(self, dim: int, dropout: float = 0.0, bias: bool = True) -> WithSRUFeedForward:
        return WithSRUFeedForward(self, dim, dropout, bias)


@dataclass
class SRUState(State):
    """The state of the recurrence."""

    c: Tensor | None = None  # (b, units), float32 or wider


class Recurrence(nn.Module):
    """(b, n, c) -> (b, n, c) through a few recurrent channels."""

    def __init__(self, dim: int, units: int, bias: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.to_narrow = nn.Linear(dim, units, bias=bias)
        self.to_gates = nn.Linear(units, 3 * units)
        self.to_out = nn.Linear(units, dim, bias=bias)

    def forward(self, x: Tensor, c: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Tokens (b, n, c) and the memory (b, units) before them -> (b, n, c), and that after."""
        z = self.to_narrow(self.norm(x))  # (b, n, units)
        r, f, new = self.to_gates(z).to(c.dtype).chunk(3, dim=-1)  # (b, n, units) each
        forget = torch.sigmoid(f)
        if valid is not None:
            forget = forget.masked_fill(~valid[..., None], 1.0)
        states = linear_scan(forget, (1 - forget) * new, c)  # (b, n, units)
        u = torch.lerp(z.to(c.dtype) * 3**0.5, states, torch.sigmoid(r))
        return self.to_out(u.to(z.dtype)), states[:, -1].clone()

    def start(self, batch: int) -> Tensor:
        """Zeros (b, units), in float32 or wider."""
        weight = self.to_gates.weight
        work = torch.promote_types(weight.dtype, torch.float32)
        return weight.new_zeros(batch, weight.shape[1], dtype=work)


class WithSRUFeedForward(FeedForward):
    """inner(x) + recurrence(x)."""

    def __init__(self, config: WithSRU, dim: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.config = config
        self.inner = config.inner.build(dim, dropout, bias)
        self.recurrence = Recurrence(dim, config.units, bias)

    def forward(self, x: Tensor, *, valid: Tensor | None = None) -> Tensor:
        """(b, n, c) -> (b, n, c)."""
        added, _ = self.recurrence(x, self.recurrence.start(len(x)), valid)
        return self.inner(x, valid=valid) + added

    def start(self, batch: int = 1) -> SRUState:
        """The memory before the first token."""
        return SRUState(0, self.recurrence.start(batch))

    def step(self, x: Tensor, state: SRUState) -> tuple[Tensor, SRUState]:
        """The next tokens (b, n, c) -> (b, n, c), and the memory after them."""
        added, c = self.recurrence(x, state.c)
        return self.inner(x) + added, SRUState(state.position + x.shape[1], c)

    def state_size(self, tokens: int) -> int:
        """The same at any length."""
        return self.config.units
