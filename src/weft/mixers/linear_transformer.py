"""Linear Transformer: softmax gives way to a feature map, and attention becomes a recurrence.

    out_i = Σ_j A_ij v_j / (Σ_j A_ij + ε),    A_ij = φ(q_i)·φ(k_j),    φ(x) = elu(x) + 1

A query with no key to read returns 0. There is no 1/√d in the scores. Rotary positions turn q and k
before φ; since φ is not linear, the product then depends on more than the distance. A bias on the
scores and attention dropout need a matrix of scores, which does not exist here: a bias is
refused, dropout has nothing to drop.

Time O(n·d²), memory O(n·d) both ways. Decoding keeps S and z, d·(d + 1) numbers per key head at
any length.

Paper: Katharopoulos et al. 2020, Transformers are RNNs, sections 3.2 to 3.4,
https://arxiv.org/abs/2006.16236
Differs from it: the causal form runs in chunks instead of a token at a time; keys may be grouped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from weft.errors import WeftError
from weft.kernels.dense.reference import expand_heads
from weft.kernels.linear_attention.reference import (
    Sums,
    causal_linear_attention,
    elu_features,
    linear_attention,
    linear_step,
)
from weft.mixers.base import MIXERS, AttentionMixer, Frame, State, Traits
from weft.mixers.base.sums_state import SumsState


@MIXERS.register("linear_transformer")
@dataclass(frozen=True, kw_only=True)
class LinearTransformer:
    """Linear attention with the features elu(x) + 1."""

    eps: float = 1e-6  # added to the denominator

    traits: ClassVar[Traits] = Traits(
        family="feature map",
        paper="Katharopoulos et al. 2020, https://arxiv.org/abs/2006.16236",
        time="n·d²",
        memory="n·d",
        context_parallel="sums over keys, of all ranks or of those before",
        state="g·d·(d + 1)",
        causal=True,
        cross=True,
        note="features replace the softmax, so it approximates no dense attention",
    )

    def __post_init__(self) -> None:
        if self.eps <= 0:
            raise WeftError(f"eps keeps the denominator from 0, so it is above 0; got {self.eps}")

    def build(self, frame: Frame) -> LinearTransformerAttention:
        return LinearTransformerAttention(self, frame)


class LinearTransformerAttention(AttentionMixer):
    """φ(q)·S / (φ(q)·z + ε) around shared projections."""

    projections = "all"
    queries_apart = True

    def __init__(self, config: LinearTransformer, frame: Frame) -> None:
        super().__init__(config, frame)
        self._refuse_bias("linear_transformer has no matrix of scores to bias")

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool
    ) -> Tensor:
        """Sums first: O(n·d²)."""
        causal = self.frame.causal and not crossing
        return linear_attention(
            q, k, v, causal=causal, valid=valid, eps=self.config.eps, feature="elu"
        )

    def plain_attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool
    ) -> Tensor:
        """The matrix A, its rows divided by their sums."""
        k, v = expand_heads(k, q.shape[1]), expand_heads(v, q.shape[1])
        weights = (F.elu(q) + 1) @ (F.elu(k) + 1).transpose(-1, -2)  # (b, h, n, m)
        if valid is not None:
            weights = weights * valid[:, None, None, :]
        if self.frame.causal and not crossing:
            weights = weights.tril()
        return weights / (weights.sum(-1, keepdim=True) + self.config.eps) @ v

    def start(self, batch: int = 1) -> SumsState:
        """Sums of nothing."""
        self._need_causal()
        return SumsState.empty(self, batch, self.frame.head_dim)

    def step(self, x: Tensor, state: SumsState) -> tuple[Tensor, State]:
        """One token as a recurrence, several through the chunked form."""
        self._need_causal()
        q, k, v, rest = self.next_heads(x, state)
        q, k, sums = elu_features(q), elu_features(k), Sums(state.values, state.weights)
        if x.shape[1] == 1:
            y, sums = linear_step(q, k, v, sums, eps=self.config.eps)
        else:
            y, sums = causal_linear_attention(q, k, v, sums=sums, eps=self.config.eps)
        return self.project.out(y), SumsState(
            position=state.position + x.shape[1], **sums._asdict(), **rest
        )

    def state_size(self, tokens: int) -> int:
        """The same at any length."""
        self._need_causal()
        sums = self.frame.kv_heads * self.frame.head_dim * (self.frame.head_dim + 1)
        return sums + self.project.memory_size
