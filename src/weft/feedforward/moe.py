"""Mixture of experts with noisy top-k gating.

    H = x W_g + ε ∘ softplus(x W_noise),   ε ~ N(0, 1) in training
    y = Σ_i G_i E_i(x),   G = softmax over the k largest of H

    importance · (CV of Σ_x G(x))²  +  load · (CV of Σ_x P(x))²,      CV = standard deviation / mean
    P_i(x) = Φ((x W_g − the k-th largest of H without i)_i / softplus(x W_noise)_i)

P_i is the chance that expert i is among the k once its noise is drawn again. Both matrices start at
0. Nothing is dropped. `noisy=false` is plain top-k (Mixtral: top=2, a swiglu gate, and `balance`,
the loss e·Σ f_i P_i of routing.py). With k = e every expert is used and the load is even. Uniform
gates have losses 0. Time per token is that of k experts.

Paper: Shazeer et al. 2017, section 2.1 and appendix A, https://arxiv.org/abs/1701.06538; Mixtral:
Jiang et al. 2024, https://arxiv.org/abs/2401.04088
Differs from it: one level, no hierarchy; the losses train the router only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import WeftError
from weft.feedforward.base import FEEDFORWARDS, FeedForwardTraits
from weft.feedforward.routing import (
    RoutedFeedForward,
    Router,
    balance_loss,
    check_experts,
    mean,
    variation,
)


@FEEDFORWARDS.register("moe")
@dataclass(frozen=True, kw_only=True)
class MixtureOfExperts:
    """k experts per token, chosen with noise."""

    experts: int = 8
    top: int = 4  # experts per token
    activation: str = "relu"  # or a gate
    expansion: float = 4  # hidden units of an expert per channel
    hidden: int | None = None  # hidden units of an expert; None: expansion · dim
    noisy: bool = True  # learned noise on the choice in training
    importance: float = 0.1  # weight of the importance loss
    load: float = 0.1  # weight of the load loss; it needs the noise
    balance: float = 0.0  # weight of the loss e·Σ f_i P_i

    traits = FeedForwardTraits(
        summary="`top` of `experts` feed-forwards per token, chosen with learned noise",
        paper="Shazeer et al. 2017, https://arxiv.org/abs/1701.06538",
        parameters="2·e·c·h + 2·e·c",
        time="2·k·c·h + 2·e·c",
        tokenwise=False,
        tensor="experts",
    )

    def __post_init__(self) -> None:
        check_experts(self, ("importance", "load", "balance"))
        if not 1 <= self.top <= self.experts:
            raise WeftError(
                f"top experts per token are 1 to experts={self.experts}; got top={self.top}"
            )
        if self.load and not self.noisy:
            raise WeftError(
                f"the load loss is a chance over the noise, so noisy=False needs load=0; "
                f"got load={self.load}"
            )

    capacity = eval_capacity = None

    def build(self, dim: int, dropout: float = 0.0, bias: bool = True) -> MixtureFeedForward:
        return MixtureFeedForward(self, dim, dropout, bias)


class MixtureFeedForward(RoutedFeedForward):
    """Σ G_i E_i(x)."""

    config: MixtureOfExperts

    def __init__(self, config: MixtureOfExperts, dim: int, dropout: float, bias: bool) -> None:
        super().__init__(config, dim, dropout, bias)
        self.noise = Router(dim, config.experts) if config.noisy else None
        if self.noise is not None:
            nn.init.zeros_(self.router.weight)
            nn.init.zeros_(self.noise.weight)

    def router_input(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The tokens, and ε (t, e) in training."""
        if self.noise is None or not self.training:
            return x, None
        wide = torch.promote_types(x.dtype, torch.float32)
        return x, torch.randn(len(x), self.config.experts, dtype=wide, device=x.device)

    def route(self, x: Tensor, drawn: Tensor | None) -> tuple[Tensor, Tensor]:
        """The k largest of H and the softmax over them, (t, k) each."""
        scores = self.scores(x, drawn)[0]
        choice = self.choice(scores.topk(self.config.top, dim=-1).indices)
        return choice, scores.gather(1, choice).softmax(-1)

    def scores(self, x: Tensor, drawn: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """H, x W_g and the standard deviation of the noise, (t, e) each."""
        clean = self.router(x)
        if drawn is None or self.noise is None:
            return clean, clean, None
        spread = F.softplus(self.noise(x))
        return clean + drawn * spread, clean, spread

    def losses(self, x: Tensor, drawn: Tensor | None, real: Tensor | None) -> Tensor | None:
        """Importance, load and balance."""
        config = self.config
        if not (config.importance or config.load or config.balance):
            return None
        scores, clean, spread = self.scores(x, drawn)
        choice = scores.topk(config.top, dim=-1).indices
        gates = scores.gather(1, choice).softmax(-1)
        dense = torch.zeros_like(scores).scatter(1, choice, gates)  # (t, e)
        total = config.importance * variation(mean(dense, real, self.across))
        if config.load and config.top < config.experts:
            assert spread is not None  # a load loss needs noise, and this is training
            chance = self.chances(scores, clean, spread)
            total = total + config.load * variation(mean(chance, real, self.across))
        return total + config.balance * balance_loss(scores.softmax(-1), choice, real, self.across)

    def chances(self, scores: Tensor, clean: Tensor, spread: Tensor) -> Tensor:
        """P (t, e): the chance of an expert to be among the k when its noise is drawn again."""
        best = scores.topk(self.config.top + 1, dim=-1).values
        # Without i the k-th largest is the (k + 1)-th of all if i is among the k, else the k-th.
        inside = scores >= best[:, -2:-1]
        bar = torch.where(inside, best[:, -1:], best[:, -2:-1])
        return torch.special.ndtr((clean - bar) / spread)
