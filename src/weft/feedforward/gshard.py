"""GShard: each token goes to two experts, to the second as often as its weight is large.

    p = softmax(x W_r),  p1 and p2 the two largest, of i and j,   g1, g2 = (p1, p2) / (p1 + p2)
    y = g1 · E_i(x) + g2 · E_j(x),   the second term with probability min(1, 2·g2) in training

Tokens are in groups of `group`, in order; of each group an expert takes ⌈capacity · 2·group / e⌉
pairs. First choices of a group are assigned before second ones; a pair beyond the capacity adds 0.
Weights are not renormalised afterwards. Loss, mean over groups: balance · mean_i (c_i / S) · m_i,
c_i the first choices of expert i among S tokens, m_i the mean of p_i.

In evaluation both experts are always used and, by default, there is no limit: without capacity it
is Mixtral's layer. One expert is a dense feed-forward. Time per token is that of two experts.

Paper: Lepikhin et al. 2020, section 2.2 and algorithm 1, https://arxiv.org/abs/2006.16668
Differs from it: a second choice that was not drawn takes no capacity; the loss trains the router
only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import WeftError
from weft.feedforward.base import FEEDFORWARDS, FeedForwardTraits
from weft.feedforward.routing import (
    RoutedFeedForward,
    check_capacity,
    check_experts,
    counted,
)


@FEEDFORWARDS.register("gshard")
@dataclass(frozen=True, kw_only=True)
class GShard:
    """Two experts per token."""

    experts: int = 8
    activation: str = "gelu"  # or a gate
    expansion: float = 4  # hidden units of an expert per channel
    hidden: int | None = None  # hidden units of an expert; None: expansion · dim
    group: int = 1024  # tokens that share the capacity
    capacity: float | None = 1.0  # capacity per choice in training, in even shares; None: no limit
    eval_capacity: float | None = None  # the same in evaluation; None: decoding equals forward
    second: Literal["random", "always"] = (
        "random"  # in training the second expert is asked at random, or "always"
    )
    balance: float = 0.01  # weight of the loss

    traits = FeedForwardTraits(
        summary="two of `experts` feed-forwards per token, the second at random in training",
        paper="Lepikhin et al. 2020, https://arxiv.org/abs/2006.16668",
        parameters="2·e·c·h + e·c",
        time="4·c·h + e·c",
        tokenwise=False,
        tensor="experts",
    )

    def __post_init__(self) -> None:
        check_experts(self, ("balance",))
        check_capacity(self)
        if self.group < 1:
            raise WeftError(f"group counts tokens, at least 1; got group={self.group}")

    def build(self, dim: int, dropout: float = 0.0, bias: bool = True) -> GShardFeedForward:
        return GShardFeedForward(self, dim, dropout, bias)


class GShardFeedForward(RoutedFeedForward):
    """g1 · E_i(x) + g2 · E_j(x)."""

    config: GShard

    def route(self, x: Tensor, drawn: Tensor | None) -> tuple[Tensor, Tensor]:
        """The two most probable experts and their shares, (t, 2) each; (t, 1) of one expert."""
        probability = self.router(x).softmax(-1)
        choice = probability.topk(min(2, self.config.experts), dim=-1).indices
        choice = self.choice(choice)
        gate = probability.gather(1, choice)
        gate = gate / gate.sum(-1, keepdim=True)
        if not self.always():
            taken = 2 * gate > torch.rand_like(gate)
            taken[:, 0] = True
            choice = torch.where(taken, choice, self.config.experts)
        return choice, gate

    def always(self) -> bool:
        """Whether both experts are always used."""
        return not self.training or self.config.second == "always" or self.config.experts == 1

    def losses(self, x: Tensor, drawn: Tensor | None, real: Tensor | None) -> Tensor | None:
        """The mean over groups and experts of (c_i / S) · m_i."""
        if not self.config.balance:
            return None
        probability = self.router(x).softmax(-1)
        chosen = counted(probability.argmax(-1, keepdim=True), self.config.experts)
        weight = x.new_ones(len(x)) if real is None else real
        terms = (probability, chosen.to(probability.dtype), weight[:, None].to(probability.dtype))
        share, first, count = (self._per_group(term * terms[2]) for term in terms)
        size = count.clamp(min=1)  # (g, 1)
        return self.config.balance * ((first / size) * (share / size)).mean()

    def _per_group(self, values: Tensor) -> Tensor:
        """Sums over each group, which devices may share: (t, e) -> (g, e)."""
        ranks, rank = self.across.ranks, self.across.rank
        tokens = len(values) * ranks
        group = min(self.config.group, tokens)
        if ranks == 1:
            padded = F.pad(values, (0, 0, 0, -tokens % group))
            return padded.unflatten(0, (-1, group)).sum(1)
        number = torch.arange(len(values), device=values.device) + rank * len(values)
        sums = values.new_zeros(-(-tokens // group), values.shape[1])
        return self.across.sum(sums.index_add(0, number // group, values))
