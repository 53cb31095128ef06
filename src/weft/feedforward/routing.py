"""What expert layers share: a router in float32, its balance losses, and the forward pass.

    logits = x W_r,   always in float32 or wider, also under autocast

    balance(p, choice) = e · Σ_i f_i P_i,   f_i = choices of expert i per token,  P_i = mean of p_i
    z(logits) = mean of logsumexp(logits)²
    variation(v) = (std(v) / mean(v))²

k choices that are spread evenly have balance k, the least for even probabilities. Means are over
real tokens. The losses come out of `penalty()`, which runs the router once more on what it saw,
detached: they train the router, not the layers below it, and are correct under recomputation. Of a
layer that runs several times in one forward (shared blocks) the last run counts.

Capacity: in training each expert takes the first ⌈capacity · choices / experts⌉ of a call's pairs,
in the order of the tokens; padding takes none. Means and capacity are of the whole batch, also
where several devices hold parts of it (`across`). In evaluation the default is None, no limit:
tokens then do not compete, and decoding step by step equals one forward over all.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import WeftError
from weft.feedforward.activations import check_width, width
from weft.feedforward.base import FeedForward
from weft.feedforward.experts import Experts
from weft.kernels.autocast import without_autocast
from weft.kernels.experts.dispatch import within_capacity
from weft.layers.across import ALONE, Across
from weft.layers.choice import ReplayableChoice


def check_experts(config: Any, weights: tuple[str, ...]) -> None:
    """Raise unless a config's experts, widths and loss weights are valid."""
    check_width(config.activation, config.expansion, config.hidden)
    if config.experts < 1:
        raise WeftError(f"experts counts them, at least 1; got experts={config.experts}")
    for name in weights:
        if getattr(config, name) < 0:
            raise WeftError(f"{name} weighs a loss, 0 or more; got {name}={getattr(config, name)}")


def check_capacity(config: Any) -> None:
    """Raise unless capacity and eval_capacity are positive or None."""
    for name in ("capacity", "eval_capacity"):
        value = getattr(config, name)
        if value is not None and not value > 0:
            raise WeftError(
                f"{name} is capacity per choice, above 0, or None for no limit; got {name}={value}"
            )


class Router(nn.Module):
    """logits = x W_r in float32 or wider."""

    def __init__(self, dim: int, experts: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, dim))
        nn.init.uniform_(self.weight, -(dim**-0.5), dim**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """(t, c) -> (t, e)."""
        wide = torch.promote_types(x.dtype, torch.float32)
        with without_autocast(x):
            return F.linear(x.to(wide), self.weight.to(wide))


class RoutedFeedForward(FeedForward):
    """A router and its experts; subclasses define how tokens choose, and the losses."""

    def __init__(self, config: Any, dim: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.config = config
        self.router = Router(dim, config.experts)
        hidden = width(config.expansion, config.hidden, dim)
        self.experts = Experts(config.experts, dim, hidden, config.activation, dropout, bias)
        self.choice = ReplayableChoice()
        self.across: Across = ALONE
        # Inputs of the router in the last training forward: tokens and noise, detached, and `real`.
        self.last: tuple[Tensor, Tensor | None, Tensor | None] | None = None

    def forward(self, x: Tensor, *, valid: Tensor | None = None) -> Tensor:
        """(b, n, c) -> (b, n, c); padding yields 0."""
        flat, real = x.flatten(0, 1), None if valid is None else valid.flatten()
        if real is not None:
            flat = flat.masked_fill(~real[:, None], 0)
        seen, drawn = self.router_input(flat)
        if self.training:
            self.last = (seen.detach(), drawn, real)
        choice, gate = self.route(seen, drawn)  # (t, k), (t, k)
        if real is not None:
            choice = choice.masked_fill(~real[:, None], self.config.experts)
        choice = self.in_rows(choice, len(x))
        complete, room = real is None and self.always(), self.room(choice)
        group = getattr(self.config, "group", None)
        if room is not None and self.splits:
            # Which pairs have room is settled among the devices; each then takes all that are left.
            choice = self.with_room(choice, room, group)
            complete, room = False, None
        y = self.experts(flat, choice, gate, complete=complete, capacity=room, group=group)
        return y.unflatten(0, x.shape[:2])

    @property
    def splits(self) -> bool:
        """Whether other devices hold parts of the batch, or some of the experts."""
        return self.experts.elsewhere or (self.training and self.across.ranks > 1)

    def with_room(self, choice: Tensor, room: int, group: int | None) -> Tensor:
        """Choices (t, k) of this device; those beyond the room of an expert become none."""
        across = self.across if self.training else ALONE
        return within_capacity(choice, self.config.experts, room, group, across)

    def router_input(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Tokens (t, c) -> what the router reads, and the noise drawn for it."""
        return x, None

    def route(self, x: Tensor, drawn: Tensor | None) -> tuple[Tensor, Tensor]:
        """Tokens (t, c) -> experts (t, k), `config.experts` for none, and weights (t, k)."""
        raise NotImplementedError(f"{type(self).__name__} has to define route")

    def always(self) -> bool:
        """Whether every choice is an expert in the current mode."""
        return True

    def in_rows(self, choice: Tensor, rows: int) -> Tensor:
        """Experts (t, k), some of them none where rows of the batch have a limit of their own."""
        return choice

    def room(self, choice: Tensor) -> int | None:
        """How many pairs of a group each expert takes in the current mode; None: all."""
        share = self.config.capacity if self.training else self.config.eval_capacity
        if share is None:
            return None
        tokens, chosen = choice.shape
        tokens *= self.across.ranks if self.training else 1
        tokens = min(tokens, getattr(self.config, "group", None) or tokens)
        return min(tokens * chosen, math.ceil(share * tokens * chosen / self.config.experts))

    def penalty(self) -> Tensor | None:
        """The weighted losses of the last training forward; None without one."""
        if self.last is None or not self.training:
            return None
        return self.losses(*self.last)

    def losses(self, x: Tensor, drawn: Tensor | None, real: Tensor | None) -> Tensor | None:
        """The weighted losses of a router that read x (t, c), over the tokens `real` (t,)."""
        raise NotImplementedError(f"{type(self).__name__} has to define losses")


def mean(values: Tensor, real: Tensor | None, across: Across = ALONE) -> Tensor:
    """The mean over real tokens of all devices: (t, ...) -> (...)."""
    if real is None:
        own = values.mean(0)
        return own if across.ranks == 1 else across.sum(own) / across.ranks
    weight = real.to(values.dtype)
    total = across.sum(torch.tensordot(weight, values, 1))
    return total / across.sum(weight.sum()).clamp(min=1)


def balance_loss(
    probability: Tensor, choice: Tensor, real: Tensor | None = None, across: Across = ALONE
) -> Tensor:
    """Probabilities (t, e) and choices (t, k) -> e · Σ_i f_i P_i."""
    chosen = counted(choice, probability.shape[1]).to(probability.dtype)  # (t, e)
    both = mean(chosen, real, across) * mean(probability, real, across)  # (e,)
    return probability.shape[1] * both.sum()


def z_loss(logits: Tensor, real: Tensor | None = None, across: Across = ALONE) -> Tensor:
    """(t, e) -> mean of logsumexp²."""
    return mean(logits.logsumexp(-1).square(), real, across)


def variation(total: Tensor) -> Tensor:
    """(e,) -> (std / mean)², 0 where all are equal."""
    tiny = torch.finfo(total.dtype).tiny
    return total.var(correction=0) / total.mean().square().clamp(min=tiny)


def counted(choice: Tensor, experts: int) -> Tensor:
    """Choices (t, k) -> how often each token chose each expert (t, e)."""
    return (choice[..., None] == torch.arange(experts, device=choice.device)).sum(1)
