"""Random feature attention: sines and cosines of random directions estimate a Gaussian kernel.

    out_i = φ(q_i)ᵀ S_i / max(φ(q_i)·z_i, floor),    x̂ = x / ‖x‖,    w_f = σ ∘ w̃_f
    φ(x) = features^−½ [sin(w_f·x̂), cos(w_f·x̂)]_f,    E φ(x)·φ(y) = exp(−‖σ∘(x̂ − ŷ)‖² / 2)

    plain:  S_i = Σ_j φ(k_j) v_jᵀ,                        z_i = Σ_j φ(k_j)
    gated:  S_i = g_i S_{i−1} + (1 − g_i) φ(k_i) v_iᵀ,    z likewise,    g_i = sigmoid(w_g·x_i + b)

w̃ is Gaussian and fixed by the seed (`redraw` and `advance` as in performer), σ is learned per head
and channel, the gate gives one number per key head and token. Since x̂ has length 1, the kernel is
exp(q̂·k̂) up to a factor for σ = 1: bounded, and the error falls like features^−½. Features may be
negative, so a denominator below `floor` counts as `floor`. A query with no key to read returns 0.

Time O(n·f·d), memory O(n·f), f features. Decoding keeps S and z: 2·f·(d + 1) numbers per key head.
Biases on scores are refused; dropout has nothing to drop.

Paper: Peng et al. 2021, Random Feature Attention, sections 3.1 and 3.2,
https://arxiv.org/abs/2103.02143
Differs from it: all tokens at once in chunks, a floor under the denominator, and gates that begin
by forgetting slowly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import WeftError
from weft.kernels.dense.reference import expand_heads
from weft.kernels.linear_attention.reference import (
    Sums,
    causal_linear_attention,
    linear_attention,
    linear_step,
)
from weft.kernels.linear_attention.triton import Random, can_fuse, fused_causal_attention
from weft.layers.padding import zero_padding
from weft.layers.random_features import RandomDirections
from weft.mixers.base import MIXERS, Frame, State, Traits
from weft.mixers.base.random_feature import RandomFeatureMixer
from weft.mixers.base.sums_state import SumsState

SLOW_START = 4.0  # the gate's bias at the start: about 98 % is kept from token to token


@MIXERS.register("rfa")
@dataclass(frozen=True, kw_only=True)
class RFA:
    """Linear attention with random Fourier features, with or without gates."""

    features: int = 64  # random directions; each gives a sine and a cosine
    gated: bool = False  # forget by a learned gate; causal only
    floor: float = 0.01  # least denominator
    redraw_every: int = 0  # training steps between two draws; 0: never

    @property
    def traits(self) -> Traits:
        """A gate is a recurrence: it has a direction, and reads one sequence."""
        return Traits(
            family="feature map",
            paper="Peng et al. 2021, https://arxiv.org/abs/2103.02143",
            time="n·f·d",
            memory="n·f",
            context_parallel="sums over keys, of all ranks or of those before",
            state="2·g·f·(d + 1)",
            causal=True,
            bidirectional=not self.gated,
            cross=not self.gated,
            note="its gate forgets from token to token of one sequence (gated=False does not)"
            if self.gated
            else "random features estimate a Gaussian kernel",
        )

    def __post_init__(self) -> None:
        if self.features < 1:
            raise WeftError(f"features is at least 1; got features={self.features}")
        if self.floor <= 0:
            raise WeftError(f"floor keeps the denominator from 0; got floor={self.floor}")
        if self.redraw_every < 0:
            raise WeftError(
                f"redraw_every counts training steps, 0 for never; got {self.redraw_every}"
            )

    @staticmethod
    def small() -> RFA:
        """Few features."""
        return RFA(features=8)

    @staticmethod
    def variants() -> tuple[RFA, ...]:
        """Without and with gates."""
        return RFA.small(), RFA(features=8, gated=True)

    def build(self, frame: Frame) -> RFAAttention:
        return RFAAttention(self, frame)


class RFAAttention(RandomFeatureMixer):
    """Random Fourier features of unit vectors around shared projections."""

    projections = "all"

    def __init__(self, config: RFA, frame: Frame) -> None:
        super().__init__(config, frame)
        self._refuse_bias("rfa has no matrix of scores to bias")
        g, d = frame.kv_heads, frame.head_dim
        self.directions = RandomDirections(
            g, config.features, d, seed=frame.seed, layer=frame.layer, orthogonal=False
        )
        self.scale = nn.Parameter(torch.ones(g, 1, d))  # σ
        self.gate = nn.Linear(frame.dim, g) if config.gated else None
        if self.gate is not None:
            nn.init.constant_(self.gate.bias, SLOW_START)

    def mix(
        self,
        x: Tensor,
        valid: Tensor | None,
        context: Tensor | None,
        context_valid: Tensor | None,
    ) -> Tensor:
        """Features, then sums; the gates read x."""
        q, k, v = self.heads(x, context)
        causal, feature = self.frame.causal and context is None, self.feature
        (fresh, decay), limits = self.gates(x), {"eps": 0.0, "floor": self.config.floor}
        if can_fuse(q, k, v, feature, causal=causal):
            rows = {"valid": valid, "weight": fresh, "log_decay": decay}
            y = fused_causal_attention(q, k, v, feature=feature, **rows, **limits)
            return self.project.out(y)
        q, k = self.features(q), weighed(self.features(k), fresh)
        real = valid if context is None else context_valid
        rows = {"valid": real, "log_decay": decay, "refused": True}
        y = linear_attention(q, k, v, causal=causal, **rows, **limits)
        return self.project.out(y)

    @property
    def feature(self) -> Random:
        """φ, as the kernels make it."""
        return Random("trig", self.directions.weight, unit=self.scale.squeeze(1))

    def features(self, x: Tensor) -> Tensor:
        """φ: (b, h, n, d) -> (b, h, n, 2f); float16 in float32, for the range of their sums."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        weight = (self.directions.weight * self.scale).to(dtype)[None]  # (1, g, f, d)
        weight = expand_heads(weight, x.shape[1])  # (1, h, f, d)
        angle = F.normalize(x.to(dtype), dim=-1) @ weight.transpose(-1, -2)  # (b, h, n, f)
        amount, kept = angle.shape[-1] ** -0.5, dtype if x.dtype == torch.float16 else x.dtype
        return torch.cat([(y * amount).to(kept) for y in (angle.sin(), angle.cos())], dim=-1)

    def gates(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """1 − g and log g, (b, g, n) each; None without gates."""
        if self.gate is None:
            return None, None
        logit = self.gate(x).transpose(1, 2)  # (b, g, n)
        logit = logit.to(torch.promote_types(logit.dtype, torch.float32))
        return torch.sigmoid(-logit), F.logsigmoid(logit)

    def reference(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
    ) -> Tensor:
        """The matrix of kernel values, with gates times what is left of each key."""
        x = zero_padding(x, valid)
        q, k, v = (expand_heads(y, self.frame.heads) for y in self.heads(x, context))
        work = torch.promote_types(q.dtype, torch.float32)
        w = expand_heads((self.directions.weight * self.scale)[None], q.shape[1])[0].to(work)
        q, k = (y.to(work) / y.to(work).norm(dim=-1, keepdim=True) for y in (q, k))
        turn_q, turn_k = (torch.einsum("bhnd,hfd->bhnf", y, w) for y in (q, k))
        # cos(a − b) = cos a cos b + sin a sin b
        weights = (turn_q[:, :, :, None] - turn_k[:, :, None]).cos().mean(-1)  # (b, h, n, m)
        real = valid if context is None else context_valid
        if real is not None:
            weights = weights * real[:, None, None, :]
        if self.frame.causal and context is None:
            weights = weights.tril()
        if self.gate is not None:
            g = torch.sigmoid(self.gate(x).to(work)).transpose(1, 2)  # (b, g, n)
            g = g.repeat_interleave(self.frame.heads // g.shape[1], 1)  # (b, h, n)
            weights = weights * _left(g)
        bottom = weights.sum(-1, keepdim=True).clamp(min=self.config.floor)
        return self.project.out((weights / bottom).to(v.dtype) @ v)

    def start(self, batch: int = 1) -> SumsState:
        """Sums of nothing."""
        self._need_causal()
        return SumsState.empty(self, batch, 2 * self.config.features)

    def step(self, x: Tensor, state: SumsState) -> tuple[Tensor, State]:
        """One token as a recurrence, several through the chunked form."""
        self._need_causal()
        q, k, v, rest = self.next_heads(x, state)
        fresh, decay = self.gates(x)
        q, k = self.features(q), weighed(self.features(k), fresh)
        run = linear_step if x.shape[1] == 1 else causal_linear_attention
        sums = Sums(state.values, state.weights)
        y, sums = run(q, k, v, sums=sums, log_decay=decay, eps=0.0, floor=self.config.floor)
        return self.project.out(y), SumsState(
            position=state.position + x.shape[1], **sums._asdict(), **rest
        )

    def letters(self, tokens: int) -> dict[str, int]:
        """Random directions, each with a sine and a cosine."""
        return {"f": self.config.features}

    def state_size(self, tokens: int) -> int:
        """The same at any length."""
        self._need_causal()
        sums = self.frame.kv_heads * 2 * self.config.features * (self.frame.head_dim + 1)
        return sums + self.project.memory_size


def weighed(k: Tensor, weight: Tensor | None) -> Tensor:
    """Features (b, g, n, f) of keys times a number per key, (b, g, n)."""
    return k if weight is None else k * weight[..., None].to(k.dtype)


def _left(g: Tensor) -> Tensor:
    """What is left at i of key j, from gates (b, h, n): (1 − g_j)·Π_{j<t≤i} g_t, (b, h, n, n)."""
    row, rows = torch.zeros_like(g), []
    for i, one in enumerate(torch.eye(g.shape[-1], dtype=g.dtype, device=g.device)):
        now = g[..., i : i + 1]
        row = row * now + one * (1 - now)
        rows.append(row)
    return torch.stack(rows, dim=-2)
