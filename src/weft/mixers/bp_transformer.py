"""BP-Transformer: near tokens are read one by one, far ones through spans of 2, 4, 8, ... tokens.

    out_i = sum_x softmax_x(q_i · (k_x + a_λ(i,x)) / sqrt(d)) v_x   over the nodes x that i reads
    k_x = sum_j w_j k_j,  v_x = sum_j w_j v_j,  w = softmax_j(u · k_j / sqrt(d)) over tokens j of x

On each level ℓ a token reads `neighbours` (k) or k + 1 spans of 2^ℓ tokens on either side, which
begin where the level below ends: each token of the sequence is read just once, alone or in a span
(`kernels/block_sparse/binary_spans.py` has the rule). λ is the level, cut at `clip`, and the place
counted from the token. u is learned. k ≥ n − 1 with labels of 0 is full attention. Causal, only the
left side is read, and its spans are complete.
Time O(n k log(n / k) c), memory O(n k log(n / k)). Decoding keeps O(k log(n / k)) nodes.

Paper: Ye et al. 2019, section 3, https://arxiv.org/abs/1911.04070
Differs from it: each layer computes its spans from its keys and values, by a learned query,
instead of being carried from layer to layer as tokens of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor, nn

from weft.errors import at_least
from weft.kernels.attend.merge import merge
from weft.kernels.block_sparse.band import key_runs
from weft.kernels.block_sparse.binary_spans import Nodes, Sides, halve, levels, offsets, sides
from weft.kernels.dense.reference import dense_attention, expand_heads
from weft.kernels.slots import into_blocks
from weft.mixers.base import MIXERS, AttentionMixer, Frame, State, Traits

_BLOCK = 16  # nodes whose tokens share a run of keys


@MIXERS.register("bp_transformer")
@dataclass(frozen=True, kw_only=True)
class BPTransformer:
    """Attention over binary spans."""

    neighbours: int = 16  # nodes read on each level and side (one more at some borders)
    clip: int = 5  # levels from here on share their labels

    traits: ClassVar[Traits] = Traits(
        family="fixed pattern",
        paper="Ye et al. 2019, https://arxiv.org/abs/1911.04070",
        time="n w log(n / w) c",
        memory="n w log(n / w)",
        context_parallel="tokens to the ranks of their heads and back (all-to-all)",
        state="g·(2·d + 1)·2·(neighbours + 1)·log2(n/neighbours + 2)",
        causal=True,
        note="spans are runs of one sequence",
    )

    def __post_init__(self) -> None:
        at_least(1, neighbours=self.neighbours)
        at_least(0, clip=self.clip)

    def build(self, frame: Frame) -> BPAttention:
        return BPAttention(self, frame)

    @classmethod
    def variants(cls) -> tuple[BPTransformer, ...]:
        """Settings that the contract suite tests."""
        return (cls(neighbours=3, clip=1),)


@dataclass
class BPState(State):
    """Of each level, the nodes that later tokens read or that later nodes are made of."""

    levels: tuple[Nodes, ...] = ()
    first: tuple[int, ...] = ()  # the number of the first stored node of each level

    def tensors(self) -> dict[str, Tensor]:
        found = {}
        for level, nodes in enumerate(self.levels):
            found |= {f"kv{level}": nodes.kv, f"lse{level}": nodes.lse}
        return found

    def select(self, rows: Tensor) -> BPState:
        picked = tuple(Nodes(nodes.kv[rows], nodes.lse[rows]) for nodes in self.levels)
        return BPState(self.position, picked, self.first)


class BPAttention(AttentionMixer):
    """Level by level, each a band of nodes around blocks of tokens; levels merge exactly."""

    def __init__(self, config: BPTransformer, frame: Frame) -> None:
        super().__init__(config, frame)
        self._refuse_bias("bp_transformer reads spans, which have no single distance to bias")
        d, places = frame.head_dim, 2 * config.neighbours + 3
        self.query = nn.Parameter(torch.randn(frame.kv_heads, d) * 0.02)
        self.labels = nn.Parameter(torch.randn(config.clip + 1, frame.heads, places, d) * 0.02)

    def leaves(self, k: Tensor, v: Tensor, valid: Tensor | None = None) -> Nodes:
        """Level 0: keys and values (b, g, n, d) and the score of each token."""
        work = torch.promote_types(k.dtype, torch.float32)
        score = (k @ self.query[..., None])[..., 0].to(work) * k.shape[-1] ** -0.5  # (b, g, n)
        if valid is not None:
            score = score.masked_fill(~valid[:, None], float("-inf"))
        return Nodes(torch.cat((k, v), dim=-1), score)

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool
    ) -> Tensor:
        """All levels, from single tokens up."""
        n, neighbours = q.shape[2], self.config.neighbours
        index = torch.arange(n, device=q.device)
        length = index.new_full((1,), n) if valid is None else valid.sum(1)  # (r,)
        nodes, parts = self.leaves(k, v, valid), []
        for level, read in zip(
            range(levels(n, neighbours)), sides(index, neighbours), strict=False
        ):
            parts.append(self._level(q, nodes, level, read, length))
            nodes = halve(nodes)
        return merge(parts)[0].to(q.dtype)

    def _level(
        self, q: Tensor, nodes: Nodes, level: int, read: Sides, length: Tensor
    ) -> tuple[Tensor, Tensor]:
        """q (b, h, n, d) over the nodes of one level: values (b, h, n, d) and log-sum-exp."""
        b, heads, n, _ = q.shape
        k, size = self.config.neighbours, 2**level
        # Each level ends within k + 1 of its nodes, so this far lie the last nodes of this one.
        reach = -(-(k + 1) * (2 * size - 1) // size)
        ahead = 0 if self.frame.causal else reach
        block = min(_BLOCK, -(-n // size))
        w = block * size
        rows = into_blocks(q, w).transpose(1, 2)  # (b, u, h, w, d)
        u = rows.shape[1]
        number = torch.arange(u, device=q.device)[:, None] * block - reach
        start = (number + torch.arange(reach + block + ahead, device=q.device)) * size
        own = Sides(*(into_blocks(side[:, None], w) for side in read))  # each (u, w, 1)
        seen, label = offsets(start[:, None], own, size, k, self.frame.causal)
        bias = self._label_scores(rows, level).gather(
            -1, label[:, None].expand(b, u, heads, *label.shape[1:])
        )
        real = start < length[:, None, None]  # (r, u, m)
        seen = seen[:, None] & real[:, :, None, None].expand(b, -1, -1, -1, -1)
        runs = key_runs(nodes.kv, block, reach, ahead).transpose(1, 2).flatten(0, 1)
        keys, values = expand_heads(runs, heads).chunk(2, dim=-1)
        out, lse = dense_attention(
            rows.flatten(0, 1),
            keys,
            values,
            mask=seen.flatten(0, 1),
            bias=bias.flatten(0, 1),
            dropout=self.dropout,
        )
        out = out.unflatten(0, (b, u)).transpose(1, 2).flatten(2, 3)[:, :, :n]
        lse = lse.unflatten(0, (b, u)).transpose(1, 2).flatten(2, 3)[:, :, :n]
        return out.to(lse.dtype), lse

    def _label_scores(self, q: Tensor, level: int) -> Tensor:
        """q (..., h, n, d) -> what the places of a level add to scores: (..., h, n, 2k + 3)."""
        labels = self.labels[min(level, self.config.clip)]
        return q @ labels.transpose(-1, -2) * q.shape[-1] ** -0.5

    def plain_attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool
    ) -> Tensor:
        """Row by row: all nodes written out, one softmax over those that a token reads."""
        out = torch.zeros_like(q)
        for a in range(len(q)):
            n = q.shape[2] if valid is None else int(valid[a].sum())
            if n:
                out[a, :, :n] = self._plain_row(*(x[a, :, :n] for x in (q, k, v)))
        return out

    def _plain_row(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """One sequence, (h, n, d)."""
        heads, n, d = q.shape
        spans, edges = _walk(n, self.config.neighbours, self.frame.causal)
        inside = torch.zeros(len(spans), n, dtype=torch.bool, device=q.device)
        for x, (lo, hi) in enumerate(spans):
            inside[x, lo:hi] = True
        scores = torch.einsum("gd,gnd->gn", self.query, k) * d**-0.5
        share = scores[:, None].masked_fill(~inside, -torch.inf).softmax(-1)  # (g, spans, n)
        keys, values = (expand_heads((share @ y)[None], heads)[0] for y in (k, v))
        i, x, level, place = torch.tensor(edges, device=q.device).unbind(1)
        seen = torch.zeros(n, len(spans), dtype=torch.bool, device=q.device)
        seen[i, x] = True
        a = self.labels[level.clamp(max=self.config.clip), :, place]  # (edges, h, d)
        added = torch.einsum("ehd,hed->he", a, q[:, i]) * d**-0.5
        bias = q.new_zeros(n, len(spans), heads).index_put((i, x), added.T).permute(2, 0, 1)
        return dense_attention(q[None], keys[None], values[None], mask=seen, bias=bias)[0][0]

    def start(self, batch: int = 1) -> BPState:
        """No nodes."""
        self._need_causal()
        return BPState(0)

    def step(self, x: Tensor, state: BPState) -> tuple[Tensor, BPState]:
        """New leaves, the nodes they complete, and what later tokens need of both."""
        self._need_causal()
        q, k, v = self.heads(x, start=state.position)
        now = state.position + x.shape[1]
        grown, first = self._grow(self.leaves(k, v), state, now)
        if state.position:
            index = torch.arange(state.position, now, device=x.device)[:, None]
            read = zip(grown, first, sides(index, self.config.neighbours), strict=False)
            parts = [self._few(q, level, *each) for level, each in enumerate(read)]
            out = merge(parts)[0].to(q.dtype)
        else:  # a prompt, which may be long
            out = self.attention(q, k, v, None, crossing=False)
        kept = self._kept(now)
        levels = tuple(
            Nodes(*(y[:, :, a - b :].clone() for y in nodes))
            for nodes, a, b in zip(grown, kept, first, strict=True)
        )
        return self.project.out(out), BPState(now, levels, kept)

    def _grow(self, new: Nodes, state: BPState, now: int) -> tuple[list[Nodes], list[int]]:
        """Each level with the nodes that are complete at `now`, and the number of its first one."""
        grown, first = [], []
        for level in range(now.bit_length()):
            start = state.first[level] if level < len(state.first) else 0
            if level < len(state.levels):
                old = state.levels[level]
                new = Nodes(*(torch.cat((a, b), dim=2) for a, b in zip(old, new, strict=True)))
            grown.append(new)
            first.append(start)
            # Parents that were not complete before: whole pairs from the first of them on.
            lo, hi = 2 * (state.position >> level + 1) - start, 2 * (now >> level + 1) - start
            new = halve(Nodes(*(y[:, :, lo:hi] for y in new)))
        return grown, first

    def _few(
        self, q: Tensor, level: int, nodes: Nodes, first: int, read: Sides
    ) -> tuple[Tensor, Tensor]:
        """A few queries over all stored nodes of a level."""
        number = torch.arange(first, first + nodes.kv.shape[2], device=q.device)
        seen, label = offsets(number * 2**level, read, 2**level, self.config.neighbours, True)
        scores = self._label_scores(q, level)
        bias = scores.gather(-1, label.expand(*scores.shape[:2], *label.shape))
        keys, values = expand_heads(nodes.kv, q.shape[1]).chunk(2, dim=-1)
        out, lse = dense_attention(q, keys, values, mask=seen, bias=bias)
        return out.to(lse.dtype), lse

    def _kept(self, now: int) -> tuple[int, ...]:
        """Of each level, the first node that a token at `now` or later reads."""
        found = zip(range(now.bit_length()), sides(now, self.config.neighbours), strict=False)
        return tuple(max(0, read.start_left >> level) for level, read in found)

    def state_size(self, tokens: int) -> int:
        """The stored nodes of each level: a key, a value and a weight each."""
        self._need_causal()
        kept = sum((tokens >> level) - first for level, first in enumerate(self._kept(tokens)))
        return kept * self.frame.kv_heads * (2 * self.frame.head_dim + 1)


@lru_cache(maxsize=64)
def _walk(
    n: int, k: int, causal: bool
) -> tuple[list[tuple[int, int]], list[tuple[int, int, int, int]]]:
    """Nodes as (first, last + 1), and edges (token, node, level, place), by walking outwards."""
    nodes: dict[tuple[int, int], int] = {}
    edges = []
    for i in range(n):
        edges.append((i, nodes.setdefault((i, 0), len(nodes)), 0, k + 1))
        for step in (-1,) if causal else (-1, 1):
            at, level = i - 1 if step < 0 else i + 1, 0  # at: the next token not yet read
            while 0 <= at < n:
                read = 0
                # One more where the next level could not begin here.
                while 0 <= at < n and (read < k or (at + (step < 0)) % 2 ** (level + 1)):
                    read += 1
                    node = nodes.setdefault((at >> level, level), len(nodes))
                    edges.append((i, node, level, k + 1 + step * read))
                    at += step * 2**level
                level += 1
    spans = [(p << level, min(n, p + 1 << level)) for p, level in nodes]
    return spans, edges
