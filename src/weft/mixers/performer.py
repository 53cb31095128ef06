"""Performer (FAVOR+): softmax attention through random features that are always positive.

    out_i = Σ_j A_ij v_j / Σ_j A_ij,    A_ij = φ(q_i)·φ(k_j),    x̃ = x / d^¼
    softmax: φ_f(x) = exp(ω_f·x̃ − ‖x̃‖² / 2),    E A_ij = exp(q_i·k_j / √d)
    relu:    φ_f(x) = max(0, ω_f·x̃) + 10⁻³

ω_f are Gaussian, in blocks of d at right angles. The error falls like features^−½ for small norms
and grows with exp(‖q̃ + k̃‖²). A query with no key to read returns 0. Exponents are shifted by a
number that cancels: of a query its largest, of keys the largest of the row or, causally, the
largest so far, which the sums follow by a decay; so nothing overflows and no later key is read.

`redraw(draw)` takes other ω, `advance(step)` does so every `redraw_every` steps of training. Both
are functions of the seed, the layer and the number given: no forward changes ω.

Time O(n·f·d), memory O(n·f), f features. Decoding keeps S, z and the largest exponent: f·(d + 1)
numbers per key head, and one. Biases on scores are refused; dropout has nothing to drop.

Paper: Choromanski et al. 2020, Rethinking Attention with Performers, sections 2.2 to 2.4,
https://arxiv.org/abs/2009.14794
Differs from it: no ε is added to softmax features, so the shift is exact and the estimate unbiased;
each key head has its own ω; the causal form runs in chunks; keys may be grouped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from weft.errors import Unsupported, WeftError
from weft.kernels.dense import expand_heads
from weft.kernels.feature_map import Sums, causal_linear_attention, linear_attention, linear_step
from weft.kernels.feature_map_fused import RELU_FLOOR, Random, can_fuse, fused_causal_attention
from weft.layers.random_features import RandomDirections
from weft.mixers.base import MIXERS, AttentionMixer, Frame, State, Traits

Kernel = Literal["softmax", "relu"]
TINY = 1e-30  # keeps an empty row's 0 / 0 from being NaN, and changes no other


@MIXERS.register("performer")
@dataclass(frozen=True, kw_only=True)
class Performer:
    """Softmax attention by positive random features."""

    features: int | None = None  # random directions; None: d·ln d, rounded up
    kernel: Kernel = "softmax"  # relu: the generalised kernel, another function
    orthogonal: bool = True  # directions at right angles, which estimate better
    redraw_every: int = 1000  # training steps between two draws; 0: never

    traits: ClassVar[Traits] = Traits(
        family="feature map",
        paper="Choromanski et al. 2020, https://arxiv.org/abs/2009.14794",
        time="n·f·d",
        memory="n·f",
        state="g·f·(d + 1) + g",
        causal=True,
        cross=True,
        note="random features estimate the softmax",
    )

    def __post_init__(self) -> None:
        if self.features is not None and self.features < 1:
            raise WeftError(f"features is at least 1; got features={self.features}")
        if self.kernel not in get_args(Kernel):
            raise WeftError(f"kernel is one of {get_args(Kernel)}; got {self.kernel!r}")
        if self.redraw_every < 0:
            raise WeftError(
                f"redraw_every counts training steps, 0 for never; got {self.redraw_every}"
            )

    @staticmethod
    def small() -> Performer:
        """Few features, in blocks that are not all whole."""
        return Performer(features=12)

    @staticmethod
    def variants() -> tuple[Performer, ...]:
        """Both kernels."""
        return Performer.small(), Performer(kernel="relu", features=5, orthogonal=False)

    def features_at(self, head_dim: int) -> int:
        """The number of features of a head of this width."""
        return self.features or max(1, math.ceil(head_dim * math.log(head_dim)))

    def build(self, frame: Frame) -> PerformerAttention:
        """The module inside this frame."""
        return PerformerAttention(self, frame)


@dataclass
class PerformerState(State):
    """The running sums, in units of exp(top)."""

    values: Tensor | None = None  # (b, g, f, d)
    weights: Tensor | None = None  # (b, g, f)
    top: Tensor | None = None  # (b, g), the largest exponent so far; None: relu


class PerformerAttention(AttentionMixer):
    """φ(q)·S / φ(q)·z around shared projections."""

    projections = "all"

    def __init__(self, config: Performer, frame: Frame) -> None:
        super().__init__(config, frame)
        if self.positions.biased:
            raise Unsupported(
                f"performer has no matrix of scores to bias; got positions={frame.positions}; "
                f"use positions=rope, or add positions to the embedding"
            )
        self.features = config.features_at(frame.head_dim)
        self.directions = RandomDirections(
            frame.kv_heads,
            self.features,
            frame.head_dim,
            seed=frame.seed,
            layer=frame.layer,
            orthogonal=config.orthogonal,
        )

    def redraw(self, draw: int) -> None:
        """Other random directions: those of this number, 0 for the first."""
        self.directions.redraw(draw)

    def advance(self, step: int) -> None:
        """Redraw every `redraw_every` steps."""
        every = self.config.redraw_every
        if every and step % every == 0:
            self.redraw(step // every)

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool
    ) -> Tensor:
        """Sums first: O(n·f·d)."""
        if self.frame.causal and not crossing:
            kind = "exp" if self.config.kernel == "softmax" else "relu"
            feature = Random(kind, self.directions.weight, q.shape[-1] ** -0.25)
            if can_fuse(q, k, v, feature):
                return fused_causal_attention(q, k, v, feature=feature, valid=valid, eps=TINY)
            q, k, decay, _ = self.causal_features(q, k, None)
            return linear_attention(q, k, v, causal=True, valid=valid, log_decay=decay, eps=TINY)
        return linear_attention(*self.whole_features(q, k, valid), v, valid=valid, eps=TINY)

    def whole_features(self, q: Tensor, k: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """φ(q) (b, h, n, f) and φ(k) (b, g, m, f), shifted by one number per row and key head."""
        if self.config.kernel == "relu":
            return self.relu(q), self.relu(k)
        e, half = self.exponents(k)  # (b, g, m, f), (b, g, m, 1)
        own = e.detach().amax(-1, keepdim=True) - half.detach()  # (b, g, m, 1)
        if valid is None:
            top = own.amax(-2, keepdim=True)  # (b, g, 1, 1)
        else:  # padding may lie above the real keys, and there may be none of those
            hidden = ~valid[:, None, :, None]
            top = own.masked_fill(hidden, -torch.inf).amax(-2, keepdim=True)  # (b, g, 1, 1)
            top = torch.where(hidden, own, top)  # (b, g, m, 1)
        return self.queries(q), narrow((e - (half + top)).exp(), k.dtype)

    def causal_features(
        self, q: Tensor, k: Tensor, top: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """φ(q), φ(k), the log-decay (b, g, m) of sums that follow the largest exponent, and that.

        `top` (b, g) is the largest exponent before these tokens, −inf at the start.
        """
        if self.config.kernel == "relu":
            return self.relu(q), self.relu(k), None, None
        e, half = self.exponents(k)  # (b, g, m, f), (b, g, m, 1)
        now = e.detach().amax(-1) - half.detach().squeeze(-1)  # (b, g, m)
        now = now.cummax(-1).values  # (b, g, m)
        now = now if top is None else torch.maximum(now, top[..., None])
        first = now[..., :1] if top is None else top[..., None]
        before = torch.cat((first, now[..., :-1]), dim=-1)  # (b, g, m)
        decay = torch.where(before.isneginf(), 0.0, before - now)
        keys = narrow((e - (half + now[..., None])).exp(), k.dtype)
        return self.queries(q), keys, decay, now[..., -1]

    def queries(self, q: Tensor) -> Tensor:
        """exp(ω·x̃) over its largest feature: what depends on the query alone cancels."""
        e = self.projected(scaled(q))  # (b, h, n, f)
        return narrow((e - e.detach().amax(-1, keepdim=True)).exp(), q.dtype)

    def exponents(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """ω_f·x̃ and ‖x̃‖² / 2 in float32 at least: (b, h, n, d) -> (b, h, n, f), (b, h, n, 1)."""
        x = scaled(x)
        return self.projected(x), x.square().sum(-1, keepdim=True) / 2

    def relu(self, x: Tensor) -> Tensor:
        """max(0, ω_f·x̃) + 10⁻³: (b, h, n, d) -> (b, h, n, f)."""
        return narrow(self.projected(scaled(x)).relu() + RELU_FLOOR, x.dtype)

    def projected(self, x: Tensor) -> Tensor:
        """(b, h, n, d) -> (b, h, n, f): a query head uses the directions of its key head."""
        weight = self.directions.weight.to(x.dtype)[None]  # (1, g, f, d)
        return x @ expand_heads(weight, x.shape[1]).transpose(-1, -2)

    def plain_attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool
    ) -> Tensor:
        """The matrix A, its rows divided by their sums."""
        h, d = q.shape[1], q.shape[3]
        k, v = expand_heads(k, h), expand_heads(v, h)
        work = torch.promote_types(q.dtype, torch.float32)
        omega = expand_heads(self.directions.weight[None], h)[0].to(work)  # (h, f, d)
        q, k = ((x.to(work) * d**-0.25) for x in (q, k))
        if self.config.kernel == "relu":
            q, k = (torch.einsum("bhnd,hfd->bhnf", x, omega).relu() + RELU_FLOOR for x in (q, k))
            scores = (q @ k.transpose(-1, -2)).log()
        else:
            scores = _log_kernel(q, k, omega)
        if valid is not None:
            scores = scores.masked_fill(~valid[:, None, None, :], -torch.inf)
        if self.frame.causal and not crossing:
            later = torch.ones_like(scores, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        weights = scores.softmax(-1).nan_to_num(0.0)  # (b, h, n, m)
        return weights.to(v.dtype) @ v

    def start(self, batch: int = 1) -> PerformerState:
        """Sums of nothing."""
        if not self.frame.causal:
            raise self._cannot_stream()
        like = self.project.to_v.weight
        work = torch.promote_types(like.dtype, torch.float32)
        g, d, f = self.frame.kv_heads, self.frame.head_dim, self.features
        top = like.new_full((batch, g), -torch.inf, dtype=work)
        return PerformerState(
            position=0,
            values=like.new_zeros(batch, g, f, d, dtype=work),
            weights=like.new_zeros(batch, g, f, dtype=work),
            top=top if self.config.kernel == "softmax" else None,
            memory=self.project.start(batch),
        )

    def step(self, x: Tensor, state: PerformerState) -> tuple[Tensor, State]:
        """One token as a recurrence, several through the chunked form."""
        if not self.frame.causal:
            raise self._cannot_stream()
        q, k, v, rest = self.next_heads(x, state)
        q, k, decay, top = self.causal_features(q, k, state.top)
        sums = Sums(state.values, state.weights)
        run = linear_step if x.shape[1] == 1 else causal_linear_attention
        y, sums = run(q, k, v, sums=sums, log_decay=decay, eps=TINY)
        top = top if top is None else top.clone()
        now = state.position + x.shape[1]
        return self.project.out(y), PerformerState(now, *sums, top, **rest)

    def state_size(self, tokens: int) -> int:
        """The same at any length."""
        if not self.frame.causal:
            raise self._cannot_stream()
        each = self.features * (self.frame.head_dim + 1)
        sums = self.frame.kv_heads * (each + (self.config.kernel == "softmax"))
        return sums + self.project.memory_size


def scaled(x: Tensor) -> Tensor:
    """x / d^¼ in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32)) * x.shape[-1] ** -0.25


def narrow(features: Tensor, dtype: torch.dtype) -> Tensor:
    """Features in the model's precision; float16 lacks their range and stays float32."""
    return features if dtype == torch.float16 else features.to(dtype)


def _log_kernel(q: Tensor, k: Tensor, omega: Tensor) -> Tensor:
    """log A_ij up to a number per row: (b, h, n, d), (b, h, m, d), (h, f, d) -> (b, h, n, m)."""
    log_q = torch.einsum("bhnd,hfd->bhnf", q, omega)
    log_k = torch.einsum("bhmd,hfd->bhmf", k, omega) - k.square().sum(-1, keepdim=True) / 2
    top_q, top_k = (e.detach().amax(-1, keepdim=True) for e in (log_q, log_k))
    weights = (log_q - top_q).exp() @ (log_k - top_k).exp().transpose(-1, -2)  # (b, h, n, m)
    return weights.log() + top_k.transpose(-1, -2)
