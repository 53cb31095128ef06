"""Attention under a pattern: all that a fixed-pattern mechanism needs besides the pattern.

    out_i = sum_j softmax_j(q_i · k_j / sqrt(d)) v_j   over the j that the pattern lets i read

Kernels, cost and decoding follow from the pattern. Decoding caches exactly the keys that some
later query can still read.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import Unsupported
from weft.kernels.attend.api import attend
from weft.kernels.attend.bias import dense_bias
from weft.kernels.attend.planner import remember_spec
from weft.kernels.dense.reference import dense_attention, dense_weights
from weft.kernels.device_cache import device_cache
from weft.kernels.planner.context import outside_graphs
from weft.layers.cache import append
from weft.layers.marks import Mark
from weft.layers.padding import zero_padding
from weft.mixers.base import AttentionMixer, Frame, State, Traits
from weft.patterns import Causal, Full, Pattern
from weft.patterns.derive import keeps, mask

# Made once: where a compiled graph breaks around `attend`, it reads a pattern but cannot make one.
EVERY_KEY = remember_spec(Full())
SEGMENTS = Mark("segments", "number", "the document of a packed row that a token belongs to")


def pattern_traits(
    paper: str,
    *,
    time: str,
    memory: str,
    state: str,
    context_parallel: str,
    pair: str = "blocks pair",
    marks: tuple[Mark, ...] = (SEGMENTS,),
) -> Traits:
    """The traits of exact attention under a pattern that can be causal; `pair`: what pairs whom."""
    return Traits(
        family="fixed pattern",
        paper=paper,
        time=time,
        memory=memory,
        state=state,
        context_parallel=context_parallel,
        exact=True,
        causal=True,
        compiles=False,
        note=f"{pair} positions of one sequence; its layout is planned outside the graph",
        marks=marks,
    )


@dataclass(kw_only=True)
class KeyValueState(State):
    """The keys and values that later queries can still read, and their positions."""

    k: Tensor  # (b, g, m, d)
    v: Tensor  # (b, g, m, d)
    kept: np.ndarray  # (m,) positions, ascending
    # The buffers that k and v are the first rows of; a state that was stepped from has none.
    room: tuple[Tensor | None, Tensor | None] = field(default=(None, None), repr=False)

    def extend(self, k: Tensor, v: Tensor, position: int) -> KeyValueState:
        """The state with more keys and values (b, g, n, d), up to `position`."""
        # A second extension of this state has no buffer and copies, so both stay intact.
        (k_room, v_room), self.room = self.room, (None, None)
        (k, k_room), (v, v_room) = append(k_room, self.k, k), append(v_room, self.v, v)
        kept = np.concatenate((self.kept, np.arange(self.position, position)))
        return KeyValueState(position=position, k=k, v=v, kept=kept, room=(k_room, v_room))

    def only(self, needed: np.ndarray) -> KeyValueState:
        """The state without the keys that are not needed (m,)."""
        if needed.all():
            return self
        index = torch.as_tensor(np.flatnonzero(needed), device=self.k.device)
        k, v = self.k.index_select(2, index), self.v.index_select(2, index)
        return dataclasses.replace(self, k=k, v=v, kept=self.kept[needed], room=(None, None))

    def select(self, rows: Tensor) -> KeyValueState:
        """The state of these batch rows, in this order."""
        return dataclasses.replace(super().select(rows), room=(None, None))


class PatternAttention(AttentionMixer):
    """Softmax attention under a fixed pattern.

    `segments` (b, n) numbers documents packed in a row: a token reads its own document only.
    """

    projections = "all"

    def __init__(self, config: Any, frame: Frame, pattern: Pattern) -> None:
        super().__init__(config, frame)
        self.pattern = remember_spec(pattern)
        # A causal query reads all earlier keys: decoding plans nothing and drops nothing.
        self.reads_all = isinstance(pattern, Causal)

    def mark_registers(self, name: str, mark: Tensor, count: int) -> Tensor:
        """Refused: a register would belong to one of the documents."""
        if count:
            raise Unsupported(
                f"registers belong to no document of a packed row, so {name} need registers=0; "
                f"got registers={count}"
            )
        return super().mark_registers(name, mark, count)

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
        pattern = EVERY_KEY if crossing else self.pattern
        bias = self.positions.at if self.positions.biased and not crossing else None
        # Of a context, `valid` says nothing about the queries: they are not aligned with it.
        settings: dict[str, Any] = {"bias": bias, "dropout": self.dropout, "aligned": not crossing}
        return attend(q, k, v, pattern, valid=valid, segments=segments, **settings)

    def first_rows(self, x: Tensor, count: int, valid: Tensor | None = None) -> Tensor:
        """The keys that the first queries read, under their rows of the mask."""
        if self.frame.causal:
            return super().first_rows(x, count, valid)
        reach, seen = self.first_rows_seen(x.shape[1], count, x.device)
        if valid is not None:
            real = valid[:, None, None, :reach]  # (b, 1, 1, m)
            seen = real if seen is None else real & seen
        plain = self.frame.positions is None and not self.positions.biased
        if plain and self.project.foldable:
            return self.project.to_out(self._without_keys(x[:, :reach], count, seen))
        q, k, v = self.first_rows_heads(zero_padding(x, valid), count, reach)
        bias = None
        if self.positions.biased:
            j = torch.arange(reach, device=x.device)
            bias = dense_bias(self.positions.at, self.frame.heads, j[:count, None], j[None])
        out = dense_attention(q, k, v, mask=seen, bias=bias, dropout=self.dropout)[0]
        return self.project.out(out)

    def _without_keys(self, x: Tensor, count: int, seen: Tensor | None) -> Tensor:
        """Few queries read the tokens themselves: q·(W x) = (Wᵀ q)·x, and Σ p (W x) = W (Σ p x).

        x (b, m, c), seen (b or 1, h or 1, count, m) -> (b, count, h·d).
        """
        h, g, d = self.frame.heads, self.frame.kv_heads, self.frame.head_dim
        to_k, to_v = self.project.to_k, self.project.to_v
        q = self.project.q(x[:, :count]).unflatten(1, (g, -1))  # (b, g, h/g, count, d)
        # A bias of the keys adds the same to all scores of a query, which cancels in the softmax.
        queries = torch.einsum("bgpnd,gdc->bgpnc", q, to_k.weight.to(q.dtype).view(g, d, -1))
        queries = queries.reshape(len(x), 1, h * count, -1)  # (b, 1, h·count, c)
        tokens = x.to(queries.dtype)[:, None]  # (b, 1, m, c)
        if seen is not None:
            seen = seen.expand(len(x), h, count, -1).flatten(1, 2)[:, None]  # (b, 1, h·count, m)
        weights, _ = dense_weights(queries, tokens, mask=seen, scale=d**-0.5, dropout=self.dropout)
        read = (weights.to(tokens.dtype) @ tokens).view(len(x), g, h // g, count, -1)
        out = torch.einsum("bgpnc,gdc->bngpd", read, to_v.weight.to(read.dtype).view(g, d, -1))
        if to_v.bias is not None:  # times the sum of the weights: 1 without dropout
            sums = weights.sum(-1).view(len(x), g, h // g, count, 1).permute(0, 3, 1, 2, 4)
            out = out + (sums * to_v.bias.view(g, 1, d)).to(out.dtype)
        return out.flatten(2)

    def first_rows_seen(
        self, n: int, count: int, device: torch.device
    ) -> tuple[int, Tensor | None]:
        """How many keys the first queries reach, and which they see: (h or 1, count, reach)."""
        if isinstance(self.pattern, Full):
            return n, None  # and nothing breaks a compiled graph
        return _first_rows_seen(self.pattern, n, count, self.frame.heads, device)

    def plain_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        valid: Tensor | None,
        crossing: bool,
        segments: Tensor | None = None,
    ) -> Tensor:
        """The equation under the dense mask."""
        n, m, heads = q.shape[2], k.shape[2], q.shape[1]
        if crossing:
            allowed = q.new_ones(heads, n, m, dtype=torch.bool)  # (h, n, m)
        else:
            allowed = mask(self.pattern, n, heads=heads, device=q.device)  # (h, n, m)
        if valid is not None:
            allowed = allowed & valid[:, None, None, :]  # (b, h, n, m)
        if segments is not None:
            allowed = allowed & (segments[:, None, :, None] == segments[:, None, None, :])
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
        none = np.zeros(0, dtype=np.int64)
        return KeyValueState(k=empty, v=empty, kept=none, memory=self.project.start(batch))

    def step(self, x: Tensor, state: KeyValueState) -> tuple[Tensor, KeyValueState]:
        """Attend from the new tokens to what is cached and to each other."""
        q, k, v, rest = self.next_heads(x, state)
        after = state.extend(k, v, state.position + x.shape[1])
        if state.position:
            out = self._from_cache(q, state.position, after)
        else:  # a prompt, which may be long
            out = self.attention(q, k, v, None, crossing=False)
        return self.project.out(out), self._pruned(after, **rest)

    def absorb(self, x: Tensor, state: KeyValueState) -> KeyValueState:
        """Keys and values of the new tokens, and no queries."""
        now = state.position + x.shape[1]
        index = torch.arange(state.position, now, device=x.device)
        k, v, memory = self.project.keys(x, state.memory)
        after = state.extend(self.positions.rotate(k, index), v, now)
        return self._pruned(after, memory=memory)

    def _pruned(self, state: KeyValueState, memory: Tensor | None) -> KeyValueState:
        """The state without keys that no later query reads."""
        state.memory = memory
        if self.reads_all:
            return state
        return state.only(self.needed(state.kept, state.position))

    def letters(self, tokens: int) -> dict[str, int]:
        """The keys that later queries read."""
        return {"keys": int(self.needed(np.arange(tokens), tokens).sum())}

    def state_size(self, tokens: int) -> int:
        """Keys and values of the positions that a later query can read."""
        if not self.frame.causal or self.pattern.needs_length:
            raise self._cannot_stream()
        count = int(self.needed(np.arange(tokens), tokens).sum())
        cached = 2 * count * self.frame.kv_heads * self.frame.head_dim
        return cached + self.project.memory_size

    def needed(self, positions: np.ndarray, now: int) -> np.ndarray:
        """Which positions a query at `now` or later reads in some head."""
        each = dict.fromkeys(_by_head(self.pattern, self.frame.heads))
        return np.logical_or.reduce([keeps(pattern, positions, now) for pattern in each])

    def _from_cache(self, q: Tensor, start: int, state: KeyValueState) -> Tensor:
        """q (b, h, n, d) at positions start.. over the keys of a state (b, g, m, d)."""
        heads, k, v = self.frame.heads, state.k, state.v
        if self.reads_all and q.shape[2] == 1 and not self.positions.biased:
            return _unmasked(q, k, v)
        i, j = torch.arange(start, start + q.shape[2])[:, None], torch.as_tensor(state.kept)[None]
        each = _by_head(self.pattern, heads)
        seen = {pattern: pattern.sees(i, j) for pattern in dict.fromkeys(each)}
        allowed = torch.stack([seen[pattern] for pattern in each])  # (h, n, m)
        if self.positions.biased:
            bias = dense_bias(self.positions.at, heads, i.to(q.device), j.to(q.device))
            return dense_attention(q, k, v, mask=allowed.to(q.device), bias=bias)[0]
        if allowed.all():
            return _unmasked(q, k, v)
        return dense_attention(q, k, v, mask=allowed.to(q.device))[0]


@outside_graphs  # evaluated on the host and cached, outside of any graph
@device_cache(64)
def _first_rows_seen(
    pattern: Pattern, n: int, count: int, heads: int, device: torch.device
) -> tuple[int, Tensor | None]:
    i, j = torch.arange(count)[:, None], torch.arange(n)[None]
    each = _by_head(pattern, heads)
    seen = torch.stack([one.sees(i, j, n).expand(count, n) for one in each])  # (h or 1, count, n)
    reach = max(int(seen.any(0).any(0).nonzero().max()) + 1 if seen.any() else 0, count)
    seen = seen[..., :reach]
    return reach, None if seen.all() else seen.to(device)


def _unmasked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])


@lru_cache(maxsize=256)
def _by_head(pattern: Pattern, heads: int) -> tuple[Pattern, ...]:
    """The pattern of each head; one alone where all are the same."""
    each = tuple(pattern.head(a, heads) for a in range(heads))
    return each[:1] if len(set(each)) == 1 else each
