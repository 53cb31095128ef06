"""Synthesizer: attention whose scores are made without comparing queries with keys.

    out_i = Σ_j softmax_j(S_ij) v_j,     i, j < length

    dense               S_i = W₂ relu(W₁ x_i + b₁) + b₂, with length rows in W₂
    random              S = R (length, length), learned;     fixed_random: drawn once from the seed
    factorised_dense    S_ij = A_i[j mod a]·B_i[⌊j / a⌋], A_i and B_i as dense, a·b ≥ length
    factorised_random   S = R₁ R₂ᵀ of the given rank

All of it per head. Several kinds are mixed with learned shares that sum to 1. The dot product
D = q kᵀ / √d joins as a plain sum S + D (`plus`) or as (1 − α)·D + α·S (`alpha`, α learned from ½).
S = 0 is the mean of the values read; `plus` with S = 0, or α → 0, is full attention.

Causal through a mask. Longer input than `length` is an error. A position bias by distance is added
to the scores; rotary positions turn q and k, so they need the dot product.
Time O(n²·d), memory O(h·n²). Decoding keeps the values, and the keys where the dot product joins.

Paper: Tay et al. 2020, Synthesizer, section 3, https://arxiv.org/abs/2005.00743
Differs from it: a and b of factorised_dense are the least that reach `length`; W₁ is its own,
beside W_q.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import Unsupported, WeftError
from weft.kernels.attend.bias import dense_bias
from weft.kernels.dense.added_scores import attend_with_scores, can_add
from weft.kernels.dense.reference import expand_heads
from weft.layers.positions import build_positions
from weft.layers.projections.dense import join_heads, split_heads
from weft.layers.synthesis import (
    DenseScores,
    FactorisedDenseScores,
    FactorisedRandomScores,
    RandomScores,
)
from weft.mixers.base import MIXERS, Frame, Mixer, State, Traits

Part = DenseScores | FactorisedDenseScores | FactorisedRandomScores | RandomScores
Kind = Literal["dense", "random", "fixed_random", "factorised_dense", "factorised_random"]
Mixture = Literal["none", "plus", "alpha"]
DEFAULT_LENGTH = 2048  # where the frame names no length


@MIXERS.register("synthesizer")
@dataclass(frozen=True, kw_only=True)
class Synthesizer:
    """Attention with synthesised scores."""

    kinds: Kind | tuple[Kind, ...] = "dense"  # several: mixed with learned shares
    mixture: Mixture = "none"  # how the dot product joins
    rank: int = 8  # of factorised_random

    @property
    def traits(self) -> Traits:
        """The dot product adds keys to the decoding state."""
        return Traits(
            family="synthesised",
            paper="Tay et al. 2020, https://arxiv.org/abs/2005.00743",
            time="n²·d",
            memory="h·n²",
            context_parallel="values, and keys, of all tokens that are read",
            state="g·d·n" if self.mixture == "none" else "2·g·d·n",
            causal=True,
            note="its scores are made from positions and the reading token alone",
        )

    def __post_init__(self) -> None:
        if not self.parts:
            raise WeftError(f"kinds are one or more of {get_args(Kind)}; got {self.kinds!r}")
        if self.rank < 1:
            raise WeftError(f"rank is at least 1; got rank={self.rank}")

    @staticmethod
    def variants() -> tuple[Synthesizer, ...]:
        """Every kind and every mixture."""
        learned = Synthesizer(kinds="factorised_random", mixture="alpha", rank=3)
        alone = ("dense", "random", "fixed_random", "factorised_dense")
        mixed = Synthesizer(kinds=("factorised_random", "dense"), mixture="plus")
        return (*(Synthesizer(kinds=kind) for kind in alone), learned, mixed)

    @property
    def parts(self) -> tuple[Kind, ...]:
        """The kinds, also where there is one."""
        return (self.kinds,) if isinstance(self.kinds, str) else self.kinds

    def build(self, frame: Frame) -> SynthesizerAttention:
        return SynthesizerAttention(self, frame)


@dataclass(kw_only=True)
class SynthesizerState(State):
    """All values so far; keys too where the dot product joins."""

    values: Tensor  # (b, g, t, d)
    keys: Tensor | None = None  # (b, g, t, d)


class SynthesizerAttention(Mixer):
    """softmax(S) v; there are no query and key projections unless the dot product joins."""

    def __init__(self, config: Synthesizer, frame: Frame) -> None:
        super().__init__(config, frame)
        self.length, width = frame.length or DEFAULT_LENGTH, frame.heads * frame.head_dim
        self.positions = build_positions(frame.positions, frame.heads, frame.head_dim)
        self.compares = config.mixture != "none"
        if frame.positions is not None and not self.positions.biased and not self.compares:
            raise Unsupported(
                f"synthesizer(mixture='none') has no queries and keys to turn; got positions="
                f"{frame.positions}; use mixture='plus' or 'alpha', or positions=None"
            )
        self.parts = nn.ModuleList(self._part(kind) for kind in config.parts)
        self.to_v = nn.Linear(frame.dim, frame.kv_heads * frame.head_dim, bias=frame.bias)
        self.to_out = nn.Linear(width, frame.dim, bias=frame.bias)
        if self.compares:
            self.to_q = nn.Linear(frame.dim, width, bias=frame.bias)
            self.to_k = nn.Linear(frame.dim, frame.kv_heads * frame.head_dim, bias=frame.bias)
        if len(self.parts) > 1:
            self.shares = nn.Parameter(torch.zeros(len(self.parts)))
        if config.mixture == "alpha":
            self.alpha = nn.Parameter(torch.zeros(()))

    def _part(self, kind: Kind) -> Part:
        frame, length = self.frame, self.length
        if kind == "dense":
            return DenseScores(frame.dim, frame.heads, frame.head_dim, length)
        if kind == "factorised_dense":
            return FactorisedDenseScores(frame.dim, frame.heads, frame.head_dim, length)
        if kind == "factorised_random":
            return FactorisedRandomScores(frame.heads, length, self.config.rank)
        fixed = kind == "fixed_random"
        return RandomScores(frame.heads, length, frame.seed + frame.layer if fixed else None)

    def mix(
        self,
        x: Tensor,
        valid: Tensor | None,
        context: Tensor | None,
        context_valid: Tensor | None,
    ) -> Tensor:
        """Scores, softmax, values."""
        return self._read(x, *self._keys_values(x, 0), valid, start=0)

    def first_rows(self, x: Tensor, count: int, valid: Tensor | None = None) -> Tensor:
        """Few rows of scores over all values."""
        if self.frame.causal:
            return super().first_rows(x, count, valid)
        return self._read(x[:, :count], *self._keys_values(x, 0), valid, start=0)

    def _keys_values(self, x: Tensor, start: int) -> tuple[Tensor | None, Tensor]:
        """Keys, where they are compared, and values: (b, g, n, d)."""
        v = split_heads(self.to_v(x), self.frame.kv_heads)
        return self._turned(self.to_k, x, self.frame.kv_heads, start) if self.compares else None, v

    def _turned(self, project: nn.Linear, x: Tensor, heads: int, start: int) -> Tensor:
        index = torch.arange(start, start + x.shape[1], device=x.device)
        return self.positions.rotate(split_heads(project(x), heads), index)

    def _read(
        self, x: Tensor, k: Tensor | None, v: Tensor, valid: Tensor | None, start: int
    ) -> Tensor:
        """Tokens x (b, n, c) from index `start` read all keys and values (b, g, m, d)."""
        n, m = x.shape[1], v.shape[2]
        if m > self.length:
            raise WeftError(
                f"synthesizer was built for at most {self.length} tokens; got {m}; "
                f"build it with Frame(length={m}) or more"
            )
        if can_add(v, queries=n, plain=self._adds_scores) and k is not None:
            return self.to_out(join_heads(self._fused(x, k, v, valid, start)))
        i = torch.arange(start, start + n, device=x.device)[:, None]  # (n, 1)
        j = torch.arange(m, device=x.device)
        scores = self._scores(x, k, start, m)
        if self.positions.biased:
            scores = scores + dense_bias(self.positions.at, self.frame.heads, i, j)
        # The least number instead of −inf: a row of nothing but padding stays finite.
        least = torch.finfo(scores.dtype).min
        if self.frame.causal:
            scores = scores.masked_fill(j > i, least)
        if valid is not None:
            scores = scores.masked_fill(~valid[:, None, None, :], least)
        weights = F.dropout(scores.softmax(-1), self.frame.dropout, training=self.training)
        y = weights.to(v.dtype) @ expand_heads(v, self.frame.heads)  # (b, h, n, d)
        return self.to_out(join_heads(y))

    @property
    def _adds_scores(self) -> bool:
        """Whether scores are the dot product plus one synthesised matrix, with nothing hidden."""
        one = self.config.mixture == "plus" and len(self.parts) == 1
        return one and not (self.frame.causal or self.positions.biased)

    def _fused(self, x: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, start: int) -> Tensor:
        """(b, h, n, d), without a matrix of weights in memory."""
        q = self._turned(self.to_q, x, self.frame.heads, start)  # (b, h, n, d)
        added = self.parts[0](x, start, v.shape[2])  # (b or 1, h, n, m)
        dropout = self.frame.dropout if self.training else 0.0
        return attend_with_scores(q, k, v, added, valid, dropout)

    def _scores(self, x: Tensor, k: Tensor | None, start: int, m: int) -> Tensor:
        """(b or 1, h, n, m): random kinds are the same for the whole batch."""
        work = torch.promote_types(x.dtype, torch.float32)
        made = [part(x, start, m).to(work) for part in self.parts]
        scores = made[0] if len(made) == 1 else self._mixed(made)
        if k is None:
            return scores
        q = self._turned(self.to_q, x, self.frame.heads, start)  # (b, h, n, d)
        dots = q @ expand_heads(k, q.shape[1]).transpose(-1, -2)  # (b, h, n, m)
        dots = dots.to(work) * q.shape[-1] ** -0.5
        if self.config.mixture == "plus":
            return dots + scores
        share = self.alpha.to(work).sigmoid()
        return (1 - share) * dots + share * scores

    def _mixed(self, made: list[Tensor]) -> Tensor:
        shares = self.shares.to(made[0].dtype).softmax(0)
        parts = [share * part for share, part in zip(shares, made, strict=True)]
        return sum(parts[1:], parts[0])

    def reference(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
    ) -> Tensor:
        """Row by row over real tokens."""
        y = torch.zeros_like(x)
        for row in range(len(x)):
            real = slice(x.shape[1] if valid is None else int(valid[row].sum()))
            y[row, real] = self._plain_row(x[row, real])
        return y

    def _plain_row(self, x: Tensor) -> Tensor:
        """(n, c) -> (n, c), head by head."""
        scores = self._plain_scores(x)  # (h, n, n)
        if self.frame.causal:
            future = torch.ones_like(scores, dtype=torch.bool).triu(1)  # (h, n, n)
            scores = scores.masked_fill(future, -torch.inf)
        v = self.to_v(x).unflatten(-1, (self.frame.kv_heads, -1))  # (n, g, d)
        group = self.frame.heads // self.frame.kv_heads
        # A bias has made the scores float32.
        weights = scores.softmax(-1).to(v.dtype)  # (h, n, n)
        heads = [weights[a] @ v[:, a // group] for a in range(self.frame.heads)]
        return self.to_out(torch.cat(heads, dim=-1))

    def _plain_scores(self, x: Tensor) -> Tensor:
        """(n, c) -> (h, n, n)."""
        made = torch.stack([cast(Part, part).plain(x) for part in self.parts])
        shares = self.shares.softmax(0) if len(made) > 1 else made.new_ones(1)
        scores = torch.einsum("s,shij->hij", shares, made)
        index = torch.arange(len(x), device=x.device)
        if self.compares:
            q = self.to_q(x).unflatten(-1, (self.frame.heads, -1)).movedim(1, 0)
            k = self.to_k(x).unflatten(-1, (self.frame.kv_heads, -1)).movedim(1, 0)
            k = k.repeat_interleave(len(q) // len(k), dim=0)
            q, k = (self.positions.rotate(part[None], index)[0] for part in (q, k))
            dots = torch.einsum("hid,hjd->hij", q, k) / self.frame.head_dim**0.5
            alpha = self.alpha.sigmoid() if self.config.mixture == "alpha" else None
            scores = dots + scores if alpha is None else (1 - alpha) * dots + alpha * scores
        if self.positions.biased:
            head = torch.arange(self.frame.heads, device=x.device)[:, None, None]
            scores = scores + self.positions.at(head, index[:, None], index)
        return scores

    def start(self, batch: int = 1) -> SynthesizerState:
        """No values, no keys."""
        self._need_causal()
        none = self.to_v.weight.new_zeros(batch, self.frame.kv_heads, 0, self.frame.head_dim)
        return SynthesizerState(values=none, keys=none if self.compares else None)

    def step(self, x: Tensor, state: SynthesizerState) -> tuple[Tensor, State]:
        """Append, then read all."""
        self._need_causal()
        k, v = self._keys_values(x, state.position)
        v = torch.cat((state.values, v), dim=2)
        if state.keys is not None and k is not None:
            k = torch.cat((state.keys, k), dim=2)
        y = self._read(x, k, v, None, start=state.position)
        return y, SynthesizerState(position=state.position + x.shape[1], values=v, keys=k)

    def state_size(self, tokens: int) -> int:
        """Values of all tokens, and keys where they are compared."""
        self._need_causal()
        kept = 2 if self.compares else 1
        return kept * self.frame.kv_heads * self.frame.head_dim * tokens
