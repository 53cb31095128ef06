"""PoWER-BERT: an encoder that drops the tokens which attention reads least, layer by layer.

    significance of j = sum over heads and queries i of a_ij,    a = softmax of the layer
    after the mixing of layer k, the ⌈keep_k · n⌉ most significant of n tokens go on, in their order

Registers (a CLS token) always go on. A token that is dropped keeps the vector it had, so the output
has all n. keep = 1 everywhere is an Encoder with full attention.

`extract="soft"` learns how much to keep: the token of rank r is multiplied by w_k[r] in [0, 1], all
go on, and `extraction_loss()`, times a factor, is to be added to the loss. `hardened()` then makes
the model that drops, by the shares that were learned.

Paper: Goyal et al. 2020, section 3, https://arxiv.org/abs/2001.08950
Differs from it: shares of the real tokens instead of counts, so that any length and padding work; w
belongs to bins of relative rank, `bins` of them, for the same reason.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from weft.errors import WeftError
from weft.kernels.dense.reference import expand_heads
from weft.layers.marks import Marks, refuse_marks
from weft.layers.padding import take
from weft.mixers import FullAttention
from weft.mixers.base import AttentionMixer
from weft.models.registry import MODELS
from weft.models.stack.sublayer import SelfSublayer, StackInputs
from weft.models.trunks.encoder import Encoder, EncoderModule


@MODELS.register("power_bert")
@dataclass(frozen=True, kw_only=True)
class PowerBert(Encoder):
    """An encoder with ever fewer tokens; its stack has full attention."""

    keep: tuple[float, ...] = (1.0, 0.75, 0.5, 0.5, 0.25, 0.25)  # share that goes on, by layer
    extract: Literal["hard", "soft"] = "hard"  # soft: weigh tokens to learn `keep`
    bins: int = 64  # soft: weights of a layer, over the relative rank

    def __post_init__(self) -> None:
        super().__post_init__()
        layers, stack = self.stack.order.count("s"), self.stack
        if len(self.keep) != layers or any(not 0 < share <= 1 for share in self.keep):
            raise WeftError(
                f"keep has one share in (0, 1] for each of {layers} 's' sublayers; got "
                f"{self.keep}: give {layers} shares, or a stack of layers={len(self.keep)}"
            )
        if any(a < b for a, b in zip(self.keep, self.keep[1:], strict=False)):
            raise WeftError(f"a dropped token does not return: keep never grows; got {self.keep}")
        if self.bins < 1:
            raise WeftError(f"bins is at least 1; got bins={self.bins}")
        if set(stack.mixers) != {FullAttention()} or stack.recompute != "nothing":
            raise WeftError(
                "power_bert counts what full attention reads: mixer='full', recompute='nothing'; "
                f"got mixer={stack.mixer}, recompute={stack.recompute!r}"
            )
        if (stack.residual.name, stack.depth.name) != ("plain", "plain"):
            raise WeftError(
                "power_bert adds what attention gives, layer by layer: residual='plain' and "
                f"depth='plain'; got residual={stack.residual}, depth={stack.depth}"
            )
        if stack.frame.positions is not None:
            raise WeftError(
                "after extraction indices no longer give distances between tokens: embed positions "
                f"(Embedding(positions=...)); got frame.positions={stack.frame.positions}"
            )

    def build(self) -> PowerBertModule:
        return PowerBertModule(self)


class PowerBertModule(EncoderModule):
    """Ids (b, n) or vectors (b, n, channels) -> (b, n, c)."""

    def __init__(self, config: PowerBert) -> None:
        super().__init__(config)
        if config.extract == "soft":
            self.weights = nn.Parameter(torch.ones(len(config.keep), config.bins))

    def read(
        self, x: Tensor, *, valid: Tensor | None = None, marks: Marks | None = None
    ) -> tuple[Tensor, Tensor]:
        """The registers (b, g, c) and the tokens (b, n, c); padding yields 0. Marks are refused."""
        refuse_marks(marks, "power_bert counts how much plain full attention reads; use an Encoder")
        tokens = self.embedding(x, valid=valid)  # (b, n, c)
        real = torch.ones_like(tokens[..., 0], dtype=torch.bool) if valid is None else valid
        if self.registers:
            tokens = torch.cat((self.register_rows(len(x)), tokens), dim=1)
        y = self.stack.norm(self._through(self.enter(tokens), real))
        registers, tokens = y[:, : self.registers], y[:, self.registers :]
        return registers, tokens.masked_fill(~real[..., None], 0.0)

    def _through(self, h: Tensor, real: Tensor) -> Tensor:
        """All sublayers; what is dropped stays in `everything` as it was."""
        count, longest = real.sum(1), real.shape[1]
        real = torch.cat((real.new_ones(len(h), self.registers), real), dim=1)
        everything, where, layer = h, None, 0
        for sublayer in self.stack.running:
            if not isinstance(sublayer, SelfSublayer):
                h = sublayer(h, StackInputs(real))
                continue
            branch, significance = _attention(sublayer, h, real)
            h = sublayer.join(h, branch)
            share, layer = self.config.keep[layer], layer + 1
            significance[:, : self.registers] = float("inf")
            if self.config.extract == "soft":
                h = h * self._softly(significance, real, count, layer - 1)[..., None]
            elif share < 1.0:
                everything = _put(everything, h, where, real)
                chosen = self._chosen(significance, share, count, longest)
                h, real = take(h, chosen[0]), chosen[1] & real.gather(1, chosen[0])
                where = chosen[0] if where is None else where.gather(1, chosen[0])
        return _put(everything, h, where, real)

    def _chosen(
        self, significance: Tensor, share: float, count: Tensor, longest: int
    ) -> tuple[Tensor, Tensor]:
        """Places (b, m) of the most significant tokens, in order, and which of them are wanted."""
        most = min(self.registers + math.ceil(share * longest), significance.shape[1])
        ranked = significance.topk(most, dim=1).indices  # (b, m)
        wanted = torch.arange(most, device=count.device) < (
            self.registers + (share * count.double()).ceil()[:, None]
        )
        places, order = ranked.sort(dim=1)
        return places, wanted.gather(1, order)

    def _softly(self, significance: Tensor, real: Tensor, count: Tensor, layer: int) -> Tensor:
        """The weight of each token by its rank; registers keep theirs: (b, g + n)."""
        rank = significance.argsort(dim=1, descending=True).argsort(dim=1) - self.registers
        bins = rank * self.config.bins // count.clamp(min=1)[:, None]
        weight = self.weights[layer].clamp(0.0, 1.0)[bins.clamp(0, self.config.bins - 1)]
        return torch.where((rank < 0) | ~real, 1.0, weight)

    def extraction_loss(self) -> Tensor:
        """What soft extraction adds to the loss, times a factor: late layers should keep little."""
        self._needs_soft()
        number = torch.arange(1, len(self.weights) + 1, device=self.weights.device)
        return (number[:, None] * self.weights.clamp(0.0, 1.0)).mean(1).sum()

    def learned_keep(self) -> tuple[float, ...]:
        """The share that each layer would keep: the mass of its weights, never growing."""
        self._needs_soft()
        shares = self.weights.detach().clamp(0.0, 1.0).mean(1).cummin(0).values
        return tuple(max(float(share), 1e-6) for share in shares)

    def hardened(self) -> PowerBertModule:
        """The model that drops tokens by the shares learned here; it shares no memory with this."""
        config = dataclasses.replace(self.config, extract="hard", keep=self.learned_keep())
        model = config.build().to(self.weights.device, self.weights.dtype)
        known = {name: t for name, t in self.state_dict().items() if name != "weights"}
        model.load_state_dict(known)
        return model

    def _needs_soft(self) -> None:
        if self.config.extract != "soft":
            raise WeftError("shares are learned by extract='soft'; this model drops tokens")


def _attention(sublayer: SelfSublayer, h: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """What a full-attention sublayer adds to h (b, n, c), and how much tokens are read (b, n)."""
    body = sublayer.body
    assert isinstance(body, AttentionMixer)
    q, k, v = body.heads(sublayer.norm(h) if sublayer.pre else h)
    k, v = expand_heads(k, q.shape[1]), expand_heads(v, q.shape[1])
    work = torch.promote_types(q.dtype, torch.float32)
    scores = ((q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)).to(work)  # (b, h, n, n)
    # A row of padding alone reads itself, and stays finite.
    seen = real[:, None, None, :] | ~real.any(1)[:, None, None, None]
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)  # (b, h, n, n)
    significance = (weights * real[:, None, :, None]).sum((1, 2)).masked_fill(~real, -1.0)
    weights = nn.functional.dropout(weights, body.dropout)
    return sublayer.dropout(body.project.out(weights.to(v.dtype) @ v)), significance.detach()


def _put(everything: Tensor, h: Tensor, where: Tensor | None, real: Tensor) -> Tensor:
    """The tokens that are left, real ones of (b, m, c), at their places (b, m) among (b, n, c)."""
    if where is None:
        return h
    kept = torch.where(real[..., None], h, take(everything, where))
    return everything.scatter(1, where[..., None].expand_as(h), kept)
