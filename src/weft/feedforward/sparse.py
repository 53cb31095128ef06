"""Sparse feed-forward: of every `block` hidden units one is computed, chosen by a small controller.

    logits = C2 (C1 x) + b_c,   in hidden / block blocks of `block` units;   p = softmax in a block
    y = relu((W1 x) ∘ m) W2 + b2,   m = 1 at the unit with the largest logit of its block, else 0

Training draws the unit with noise, argmax(log p + temperature · gumbel), and lets the gradient of p
through (straight through: m = onehot + p − stop(p)); one coin per call, drawn on the device, uses
m with probability `hard`, else m = p. There is no other loss than the task's.

With block=1 it is the ReLU feed-forward. Of equal logits the first wins. At most hidden / block
units are not 0. Dropout acts on the hidden units.

Evaluation has two forms of the same value. Few tokens, at most block / 4 in a call, gather: rows of
W1 and W2 are read for the chosen units alone, 2·c·hidden/block + rank·(c + hidden) numbers per
token instead of 2·c·hidden. More tokens compute all units and mask. Both matrices are stored with
one row per unit, (hidden, c). Decoding stores nothing.

Paper: Jaszczur et al. 2021, Sparse is Enough in Scaling Transformers, section 3.1,
https://arxiv.org/abs/2111.12763 (rank = c / block; code: hidden / block)
Differs from it: `rescale`, which starts W2 √block larger, is the released code's option.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import WeftError
from weft.feedforward.activations import divided
from weft.feedforward.base import FEEDFORWARDS, FeedForward, FeedForwardTraits
from weft.layers.choice import ReplayableChoice

# Gathering copies rows: beyond block / _GATHER_SHARE tokens computing all units is faster.
_GATHER_SHARE = 4
_LEAST_RANK = 16


@FEEDFORWARDS.register("sparse")
@dataclass(frozen=True, kw_only=True)
class Sparse:
    """One unit of every block, chosen by a controller."""

    block: int = 64  # units of which one is computed
    hidden: int | None = None  # units, a multiple of block; None: the first from 4·dim on
    rank: int | None = None  # width of the controller; None: dim / block, at least 16
    temperature: float = 0.1  # of the noise on the choice in training
    hard: float = 0.3  # share of training calls that compute the chosen units alone
    rescale: bool = False  # start W2 √block larger: the output's variance is that of a dense one

    traits = FeedForwardTraits(
        summary="one hidden unit of every block, chosen by a controller: few weights per token",
        paper="Jaszczur et al. 2021, https://arxiv.org/abs/2111.12763",
        parameters="2·c·h + rank·(c + h)",
        time="2·c·h / block + rank·(c + h) decoding; 2·c·h more in training",
    )

    def __post_init__(self) -> None:
        for name in ("block", "hidden", "rank"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise WeftError(f"{name} counts units, at least 1; got {name}={value}")
        if self.temperature < 0:
            raise WeftError(f"temperature scales the noise, 0 or more; got {self.temperature}")
        if not 0.0 <= self.hard <= 1.0:
            raise WeftError(f"hard is a share of calls in [0, 1]; got hard={self.hard}")

    def units(self, dim: int) -> int:
        """Hidden units at this width."""
        hidden = self.hidden or 4 * dim
        whole = -(-hidden // self.block) * self.block
        if self.hidden not in (None, whole):
            raise WeftError(
                f"one unit of every block is chosen, so hidden is a multiple of block: got "
                f"hidden={hidden}, block={self.block}; the next is hidden={whole}"
            )
        return whole

    def share(self, dim: int, ways: int) -> Sparse:
        """The config of one of `ways` ranks, each with some of the blocks."""
        blocks = divided("hidden / block", self.units(dim) // self.block, ways)
        rank = self.rank or max(_LEAST_RANK, dim // self.block)
        return replace(self, hidden=blocks * self.block, rank=rank)

    def build(self, dim: int, dropout: float = 0.0, bias: bool = True) -> SparseFeedForward:
        return SparseFeedForward(self, dim, dropout, bias)


class RowLinear(nn.Module):
    """x W + b with W stored as one row per input, (inputs, outputs)."""

    def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs)."""
        return F.linear(x, self.weight.t(), self.bias)

    def gather(self, x: Tensor, index: Tensor) -> Tensor:
        """x (t, k) at the inputs index (t, k), the others being 0: (t, outputs)."""
        if x.is_cuda or x.dtype != self.weight.dtype or torch.compiler.is_compiling():
            rows = F.embedding(index, self.weight)  # (t, k, outputs)
            y = x @ rows[0] if len(x) == 1 else (x[:, None] @ rows).squeeze(1)
        else:
            y = self._bags(x, index)
        return y if self.bias is None else y + self.bias

    def _bags(self, x: Tensor, index: Tensor) -> Tensor:
        """`gather` without a copy of the rows; each token is split into bags, one per thread."""
        parts = gcd(x.shape[1], torch.get_num_threads())
        index, x = (each.reshape(len(each) * parts, -1) for each in (index, x))
        sums = F.embedding_bag(index, self.weight, per_sample_weights=x, mode="sum")
        return sums.unflatten(0, (-1, parts)).sum(1)  # (t, outputs)


class SparseFeedForward(FeedForward):
    """relu((W1 x) ∘ m) W2 + b2."""

    def __init__(self, config: Sparse, dim: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.config = config
        hidden = config.units(dim)
        self.blocks = hidden // config.block
        rank = config.rank or max(_LEAST_RANK, dim // config.block)
        self.to_low = nn.Linear(dim, rank, bias=False)
        self.to_logits = nn.Linear(rank, hidden, bias=bias)
        self.to_hidden = nn.Linear(dim, hidden, bias=False)
        self.to_out = RowLinear(hidden, dim, bias)
        self.choice = ReplayableChoice()
        self.dropout = nn.Dropout(dropout)
        self._initialise()

    @torch.no_grad()
    def _initialise(self) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.normal_(parameter, std=1e-6)
            else:
                nn.init.xavier_uniform_(parameter)
        if self.config.rescale:
            self.to_out.weight.mul_(self.config.block**0.5)

    def forward(self, x: Tensor, *, valid: Tensor | None = None) -> Tensor:
        """(b, n, c) -> (b, n, c)."""
        if self.training:
            hidden = self.to_hidden(x).unflatten(-1, (self.blocks, -1))  # (b, n, k, block)
            hidden = (hidden * self._soft_mask(self.logits(x))).flatten(-2)  # (b, n, hidden)
            return self.to_out(self.dropout(F.relu(hidden)))
        chosen = self.choice(self.logits(x).argmax(-1))  # (b, n, k)
        few = chosen[..., 0].numel() * _GATHER_SHARE <= self.config.block
        return self.gathered(x, chosen) if few else self.masked(x, chosen)

    def logits(self, x: Tensor) -> Tensor:
        """The controller: (..., c) -> (..., blocks, block)."""
        return self.to_logits(self.to_low(x)).unflatten(-1, (self.blocks, -1))

    def masked(self, x: Tensor, chosen: Tensor) -> Tensor:
        """Compute all units, mask all but the chosen (..., blocks): (..., c) -> (..., c)."""
        hidden = F.relu(self.to_hidden(x)).unflatten(-1, (self.blocks, -1))
        hidden = hidden.masked_fill(~_is_chosen(chosen, self.config.block), 0.0)
        return self.to_out(hidden.flatten(-2))

    def gathered(self, x: Tensor, chosen: Tensor) -> Tensor:
        """Compute the chosen units only: (..., c) and (..., blocks) -> (..., c)."""
        first = torch.arange(0, self.blocks * self.config.block, self.config.block, device=x.device)
        units = (chosen + first).flatten(0, -2)  # (t, k)
        rows = F.embedding(units, self.to_hidden.weight)  # (t, k, c)
        flat = x.flatten(0, -2)  # (t, c)
        # A product of matrices is faster than a batch of one.
        one = len(flat) == 1
        hidden = F.linear(flat, rows[0]) if one else (rows @ flat[..., None]).squeeze(-1)
        return self.to_out.gather(F.relu(hidden), units).view_as(x)

    def _soft_mask(self, logits: Tensor) -> Tensor:
        """Training: m for every unit, (b, n, blocks, block), with the gradient of p."""
        p = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        uniform = torch.rand_like(p).clamp(1e-6, 1 - 1e-6)
        noise = -torch.log(-torch.log(uniform))
        chosen = self.choice((p.detach() + self.config.temperature * noise).argmax(-1))
        coin = torch.rand((), device=p.device) < self.config.hard
        p = p.exp()
        hard = _is_chosen(chosen, self.config.block).to(p.dtype)
        # p − stop(p) is exactly 0: the value is the first term's, the gradient that of p.
        mask = torch.where(coin, hard, p.detach()) + (p - p.detach())
        return mask.to(logits.dtype)


def _is_chosen(chosen: Tensor, block: int) -> Tensor:
    """Indices (..., blocks) -> booleans (..., blocks, block)."""
    return chosen[..., None] == torch.arange(block, device=chosen.device)
