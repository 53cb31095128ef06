"""Performer (FAVOR+): softmax attention through random features that are always positive.

    out_i = Σ_j A_ij v_j / Σ_j A_ij,    A_ij = φ(q_i)·φ(k_j),    x̃ = x / d^¼
    softmax: φ_f(x) = exp(ω_f·x̃ − ‖x̃‖² / 2),    E A_ij = exp(q_i·k_j / √d)
    relu:    φ_f(x) = max(0, ω_f·x̃) + 10⁻³

ω_f are Gaussian, in blocks of d at right angles. The error falls like features^−½ for small norms
and grows with exp(‖q̃ + k̃‖²). A query with no key to read returns 0. Features are kept as
exponents, each shifted by the largest among the keys read, which cancels (`log_space.py`): so no
sum overflows or vanishes at any size of the activations. Fused kernels on a GPU (bfloat16, causal)
have one shift for all features and need exponents of a query and its keys within 80 of each other.

`redraw(draw)` takes other ω, `advance(step)` does so every `redraw_every` steps of training. Both
are functions of the seed, the layer and the number given: no forward changes ω.

Time O(n·f·d), memory O(n·f), f features. Decoding keeps S, z and the largest exponents: f·(d + 2)
numbers per key head. Biases on scores are refused; dropout has nothing to drop.

Paper: Choromanski et al. 2020, Rethinking Attention with Performers, sections 2.2 to 2.4,
https://arxiv.org/abs/2009.14794
Differs from it: no ε is added to softmax features, so the shift is exact and the estimate unbiased;
each key head has its own ω; the causal form runs in chunks; keys may be grouped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.kernels.dense.reference import expand_heads
from weft.kernels.linear_attention.log_space import (
    LogSums,
    log_linear_attention,
    log_linear_step,
    shifted_features,
    start_sums,
)
from weft.kernels.linear_attention.reference import (
    Sums,
    causal_linear_attention,
    linear_attention,
    linear_step,
)
from weft.kernels.linear_attention.triton import (
    RELU_FLOOR,
    Random,
    can_fuse,
    fused_causal_attention,
)
from weft.layers.random_features import RandomDirections
from weft.mixers.base import MIXERS, Frame, State, Traits
from weft.mixers.base.random_feature import RandomFeatureMixer
from weft.mixers.base.sums_state import SumsState

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

    @property
    def traits(self) -> Traits:
        """Exponents add their largest to the state."""
        return Traits(
            family="feature map",
            paper="Choromanski et al. 2020, https://arxiv.org/abs/2009.14794",
            time="n·f·d",
            memory="n·f",
            context_parallel="sums over keys, of all ranks or of those before",
            state=f"g·f·(d + {2 if self.kernel == 'softmax' else 1})",
            causal=True,
            cross=True,
            note="random features estimate the softmax",
        )

    def __post_init__(self) -> None:
        if self.features is not None and self.features < 1:
            raise WeftError(f"features is at least 1; got features={self.features}")
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
        return PerformerAttention(self, frame)


@dataclass(kw_only=True)
class PerformerState(SumsState):
    """The running sums, in units of exp(top)."""

    top: Tensor | None = None  # (b, g, f), the largest exponents so far; None: relu


class PerformerAttention(RandomFeatureMixer):
    """φ(q)·S / φ(q)·z around shared projections."""

    projections = "all"
    queries_apart = True

    def __init__(self, config: Performer, frame: Frame) -> None:
        super().__init__(config, frame)
        self._refuse_bias("performer has no matrix of scores to bias")
        self.features = config.features_at(frame.head_dim)
        self.directions = RandomDirections(
            frame.kv_heads,
            self.features,
            frame.head_dim,
            seed=frame.seed,
            layer=frame.layer,
            orthogonal=config.orthogonal,
        )

    @property
    def changes(self) -> bool:
        """Directions that are never redrawn stay."""
        return self.config.redraw_every > 0

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool
    ) -> Tensor:
        """Sums first: O(n·f·d)."""
        if self.frame.causal and not crossing:
            kind = "exp" if self.config.kernel == "softmax" else "relu"
            feature = Random(kind, self.directions.weight, q.shape[-1] ** -0.25)
            if can_fuse(q, k, v, feature):
                return fused_causal_attention(q, k, v, feature=feature, valid=valid, eps=TINY)
            return self.causal_reading(q, k, v, valid)
        q, k = self.whole_features(q, k, valid)
        return linear_attention(q, k, v, valid=valid, eps=TINY)

    def causal_reading(self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None) -> Tensor:
        """Every query of itself and the keys before it."""
        if self.config.kernel == "relu":
            q, k = self.relu(q), self.relu(k)
            return linear_attention(q, k, v, causal=True, valid=valid, refused=True, eps=TINY)
        a, c = self.exponents(q, k, valid)
        return log_linear_attention(a, c, v, dtype=products(v.dtype))[0]

    def whole_features(self, q: Tensor, k: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """φ(q) (b, h, n, f) and φ(k) (b, g, m, f), shifted by one number per feature."""
        if self.config.kernel == "relu":
            return self.relu(q), self.relu(k)
        of_q, of_k = shifted_features(*self.exponents(q, k, valid))
        return narrow(of_q, k.dtype), narrow(of_k, k.dtype)

    def exponents(self, q: Tensor, k: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """log φ of queries (b, h, n, f), up to a number each, and of keys (b, g, m, f).

        In float32 at least; a key that is not real has −inf.
        """
        q, k = scaled(q), scaled(k)
        c = self.projected(k) - k.square().sum(-1, keepdim=True) / 2
        if valid is not None:
            c = c.masked_fill(~valid[:, None, :, None], -torch.inf)
        return self.projected(q), c

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
        self._need_causal()
        like = self.project.to_v.weight
        work = torch.promote_types(like.dtype, torch.float32)
        g, d, f = self.frame.kv_heads, self.frame.head_dim, self.features
        values, weights, top = start_sums(like.new_empty(batch, g, 1, f, dtype=work), d)
        return PerformerState(
            values=values,
            weights=weights.clone(),
            top=top if self.config.kernel == "softmax" else None,
            memory=self.project.start(batch),
        )

    def step(self, x: Tensor, state: PerformerState) -> tuple[Tensor, State]:
        """One token as a recurrence, several through the chunked form."""
        self._need_causal()
        q, k, v, rest = self.next_heads(x, state)
        one = x.shape[1] == 1
        if self.config.kernel == "relu":
            run = linear_step if one else causal_linear_attention
            given = self.relu(q), self.relu(k), v
            y, sums = run(*given, sums=Sums(state.values, state.weights), eps=TINY)
        else:
            assert state.top is not None  # exponents have their largest
            sums = LogSums(state.values, state.weights, state.top)
            exponents = self.exponents(q, k, None)
            if one:
                y, sums = log_linear_step(*exponents, v, sums)
            else:
                wide = products(v.dtype)
                y, sums = log_linear_attention(*exponents, v, sums=sums, dtype=wide)
        return self.project.out(y), PerformerState(
            position=state.position + x.shape[1], **sums._asdict(), **rest
        )

    def letters(self, tokens: int) -> dict[str, int]:
        """The number of features."""
        return {"f": self.features}

    def state_size(self, tokens: int) -> int:
        """The same at any length."""
        self._need_causal()
        each = self.frame.head_dim + (2 if self.config.kernel == "softmax" else 1)
        return self.frame.kv_heads * self.features * each + self.project.memory_size


def scaled(x: Tensor) -> Tensor:
    """x / d^¼ in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32)) * x.shape[-1] ** -0.25


def narrow(features: Tensor, dtype: torch.dtype) -> Tensor:
    """Features in the model's precision; float16 lacks their range and stays float32."""
    return features if dtype == torch.float16 else features.to(dtype)


def products(dtype: torch.dtype) -> torch.dtype:
    """The precision of products of features and values; float16 lacks the range of sums."""
    return torch.float32 if dtype == torch.float16 else dtype


def _log_kernel(q: Tensor, k: Tensor, omega: Tensor) -> Tensor:
    """log A_ij up to a number per row: (b, h, n, d), (b, h, m, d), (h, f, d) -> (b, h, n, m)."""
    log_q = torch.einsum("bhnd,hfd->bhnf", q, omega)
    log_k = torch.einsum("bhmd,hfd->bhmf", k, omega) - k.square().sum(-1, keepdim=True) / 2
    rows = [(row[:, :, None] + log_k).logsumexp(-1) for row in log_q.unbind(2)]  # (b, h, m) each
    return torch.stack(rows, 2)
