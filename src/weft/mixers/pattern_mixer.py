"""Attention under a pattern: what every fixed-pattern mechanism is, once it has named its pattern.

    out_i = sum_j softmax_j(q_i · k_j / sqrt(d)) v_j   over the j that the pattern lets i read

Kernels, cost and decoding follow from the pattern. Decoding keeps the keys that some later query
can still read, and no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.kernels.attend import attend
from weft.kernels.bias import dense_bias
from weft.kernels.dense import dense_attention
from weft.kernels.numbered import number
from weft.mixers.base import AttentionMixer, Frame, State
from weft.patterns import Full, Pattern
from weft.patterns.derive import keeps, mask


@dataclass
class KeyValueState(State):
    """The keys and values that later queries can still read, and where they stand."""

    k: Tensor | None = None  # (b, g, m, d)
    v: Tensor | None = None  # (b, g, m, d)
    kept: np.ndarray | None = None  # (m,) positions, ascending


class PatternAttention(AttentionMixer):
    """Softmax attention under a fixed pattern.

    `segments` (b, n) numbers documents packed in a row: a token reads its own document only.
    """

    marks = ("segments",)

    def __init__(self, config: Any, frame: Frame, pattern: Pattern) -> None:
        super().__init__(config, frame)
        self.pattern = number(pattern)

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        valid: Tensor | None,
        crossing: bool,
        segments: Tensor | None = None,
    ) -> Tensor:
        """The fastest kernel for the pattern; a context is read in full."""
        pattern = Full() if crossing else self.pattern
        bias = self.positions.at if self.positions.biased and not crossing else None
        dropout = self.dropout
        return attend(q, k, v, pattern, valid=valid, segments=segments, bias=bias, dropout=dropout)

    def plain_attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool
    ) -> Tensor:
        """The equation under the dense mask."""
        n, m, heads = q.shape[2], k.shape[2], q.shape[1]
        if crossing:
            allowed = q.new_ones(heads, n, m, dtype=torch.bool)  # (h, n, m)
        else:
            allowed = mask(self.pattern, n, heads=heads, device=q.device)  # (h, n, m)
        if valid is not None:
            allowed = allowed & valid[:, None, None, :]  # (b, h, n, m)
        return self.plain_scores(q, k, v, allowed, biased=not crossing)

    def plain_scores(
        self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, biased: bool = True
    ) -> Tensor:
        """Dense attention under a mask, with the bias of the positions."""
        bias = None
        if self.positions.biased and biased:
            i = torch.arange(q.shape[2], device=q.device)[:, None]
            j = torch.arange(k.shape[2], device=q.device)[None, :]
            bias = dense_bias(self.positions.at, q.shape[1], i, j)  # (h, n, m)
        return dense_attention(q, k, v, mask=allowed, bias=bias)[0]

    def start(self, batch: int = 1) -> KeyValueState:
        """No keys yet."""
        if not self.frame.causal or self.pattern.needs_length:
            raise self._cannot_stream()
        weight = self.project.to_k.weight
        empty = weight.new_zeros(batch, self.frame.kv_heads, 0, self.frame.head_dim)
        return KeyValueState(0, empty, empty, np.zeros(0, dtype=np.int64))

    def step(self, x: Tensor, state: KeyValueState) -> tuple[Tensor, KeyValueState]:
        """Attend from the new tokens to what is kept and to each other."""
        q, k, v = self.heads(x, start=state.position)
        k, v = torch.cat((state.k, k), dim=2), torch.cat((state.v, v), dim=2)
        now = state.position + x.shape[1]
        kept = np.concatenate((state.kept, np.arange(state.position, now)))
        if state.position:
            out = self._from_cache(q, k, v, state.position, kept)
        else:  # a prompt, which may be long
            out = self.attention(q, k, v, None, crossing=False)
        needed = self.needed(kept, now)
        if not needed.all():
            index = torch.as_tensor(np.flatnonzero(needed), device=x.device)
            k, v, kept = k.index_select(2, index), v.index_select(2, index), kept[needed]
        return self.project.out(out), KeyValueState(now, k, v, kept)

    def state_size(self, tokens: int) -> int:
        """Keys and values of the positions that a later query can read."""
        if not self.frame.causal or self.pattern.needs_length:
            raise self._cannot_stream()
        count = int(self.needed(np.arange(tokens), tokens).sum())
        return 2 * count * self.frame.kv_heads * self.frame.head_dim

    def needed(self, positions: np.ndarray, now: int) -> np.ndarray:
        """Which positions a query at `now` or later reads in some head."""
        heads = {self.pattern.head(a, self.frame.heads) for a in range(self.frame.heads)}
        return np.logical_or.reduce([keeps(each, positions, now) for each in heads])

    def _from_cache(self, q: Tensor, k: Tensor, v: Tensor, start: int, kept: np.ndarray) -> Tensor:
        """q (b, h, n, d) at positions start.. over kept keys (b, g, m, d)."""
        heads = self.frame.heads
        i = torch.arange(start, start + q.shape[2], device=q.device)[:, None]
        j = torch.as_tensor(kept, device=q.device)[None, :]
        each = [self.pattern.head(a, heads) for a in range(heads)]
        allowed = torch.stack([pattern.sees(i, j) for pattern in each])  # (h, n, m)
        bias = dense_bias(self.positions.at, heads, i, j) if self.positions.biased else None
        return dense_attention(q, k, v, mask=allowed, bias=bias)[0]
