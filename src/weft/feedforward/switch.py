"""Switch: each token goes to the one expert that its router prefers.

    p = softmax(x W_r) in float32,   i = argmax p,   y = p_i · E_i(x)

In training an expert takes the first ⌈capacity · tokens / experts⌉ tokens routed to it, in token
order over all rows of the batch; other tokens get exactly 0, so only the residual connection passes
them on. Jitter multiplies the router's input by U(1 − jitter, 1 + jitter). Losses:
balance · e·Σ f_i P_i (= balance for an even split) and z_loss · mean(logsumexp²).

One expert without a limit is a dense feed-forward. Time per token is that of one expert, whatever
their number; parameters e times those of one. Evaluation drops nothing by default (see routing.py);
the paper's has eval_capacity=2. `row_capacity` is what published checkpoints have in its place: in
each row an expert takes the first so many tokens, in training and evaluation; a decoder that steps
token by token drops none.

Paper: Fedus et al. 2021, section 2, https://arxiv.org/abs/2101.03961; z-loss: Zoph et al. 2022,
ST-MoE, https://arxiv.org/abs/2202.08906
Differs from it: capacity counts all tokens of a call, and the losses train the router only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import WeftError
from weft.feedforward.base import FEEDFORWARDS, FeedForwardTraits
from weft.feedforward.routing import (
    RoutedFeedForward,
    balance_loss,
    check_capacity,
    check_experts,
    z_loss,
)


@FEEDFORWARDS.register("switch")
@dataclass(frozen=True, kw_only=True)
class Switch:
    """One expert per token."""

    experts: int = 8
    activation: str = "gelu"  # or a gate
    expansion: float = 4  # hidden units of an expert per channel
    hidden: int | None = None  # hidden units of an expert; None: expansion · dim
    capacity: float | None = 1.25  # capacity per token in training, in even shares; None: no limit
    eval_capacity: float | None = None  # the same in evaluation; None: decoding equals forward
    row_capacity: int | None = None  # tokens of a row that an expert takes, always; None: no limit
    jitter: float = 0.01  # noise on the router's input in training
    balance: float = 0.01  # weight of the balance loss
    z_loss: float = 0.001  # weight of the z-loss
    init_scale: float = 0.1  # initial variance of the matrices, relative to a dense layer's
    expert_dropout: float | None = None  # on hidden units of experts; None: as elsewhere

    traits = FeedForwardTraits(
        summary="one of `experts` feed-forwards per token",
        paper="Fedus et al. 2021, https://arxiv.org/abs/2101.03961",
        parameters="2·e·c·h + e·c",
        time="2·c·h + e·c",
        tokenwise=False,
        tensor="experts",
    )

    def __post_init__(self) -> None:
        check_experts(self, ("balance", "z_loss"))
        check_capacity(self)
        shares = self.capacity, self.eval_capacity
        if self.row_capacity is not None and (self.row_capacity < 1 or shares != (None, None)):
            raise WeftError(
                "row_capacity counts tokens of a row, at least 1, in place of shares of a batch: "
                "set capacity and eval_capacity to None; got "
                f"row_capacity={self.row_capacity}, capacity={shares[0]}, eval_capacity={shares[1]}"
            )
        if not 0 <= self.jitter < 1:
            raise WeftError(f"jitter is noise around 1, in [0, 1); got jitter={self.jitter}")
        if not self.init_scale > 0:
            raise WeftError(f"init_scale scales a variance, above 0; got {self.init_scale}")
        if self.expert_dropout is not None and not 0 <= self.expert_dropout < 1:
            raise WeftError(f"expert_dropout is in [0, 1); got {self.expert_dropout}")

    def build(self, dim: int, dropout: float = 0.0, bias: bool = True) -> SwitchFeedForward:
        return SwitchFeedForward(self, dim, dropout, bias)


class SwitchFeedForward(RoutedFeedForward):
    """p_i · E_i(x), i = argmax p."""

    config: Switch

    def __init__(self, config: Switch, dim: int, dropout: float, bias: bool) -> None:
        own = config.expert_dropout
        super().__init__(config, dim, dropout if own is None else own, bias)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.endswith("weight"):
                    parameter.mul_(config.init_scale**0.5)

    def router_input(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The tokens, jittered in training."""
        if not self.training or not self.config.jitter:
            return x, None
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        low, high = 1 - self.config.jitter, 1 + self.config.jitter
        return wide * torch.empty_like(wide).uniform_(low, high), None

    def route(self, x: Tensor, drawn: Tensor | None) -> tuple[Tensor, Tensor]:
        """The most probable expert and its probability, (t, 1) each."""
        probability = self.router(x).softmax(-1)
        choice = self.choice(probability.argmax(-1, keepdim=True))
        return choice, probability.gather(1, choice)

    def always(self) -> bool:
        """Whether no token is dropped by the rows' capacity."""
        return self.config.row_capacity is None

    def in_rows(self, choice: Tensor, rows: int) -> Tensor:
        """Experts (t, 1) -> the same, or none for tokens beyond the capacity of their row."""
        room, none = self.config.row_capacity, self.config.experts
        if room is None:
            return choice
        each = choice.view(rows, -1)  # (b, n)
        order = F.one_hot(each, none + 1).cumsum(1)  # (b, n, e + 1): which token of its expert
        late = order.gather(2, each[..., None]).flatten(0, 1) > room
        return choice.masked_fill(late, none)

    def losses(self, x: Tensor, drawn: Tensor | None, real: Tensor | None) -> Tensor | None:
        """The balance loss and the z-loss."""
        if not self.config.balance and not self.config.z_loss:
            return None
        logits = self.router(x)
        probability = logits.softmax(-1)
        even = balance_loss(probability, probability.argmax(-1, keepdim=True), real, self.across)
        return self.config.balance * even + self.config.z_loss * z_loss(logits, real, self.across)
