"""Transformer-XL: segments that read a memory of the tokens before them, with relative positions.

    s_ij = ((q_i + u)·k_j + (q_i + v)·W_R R_{i−j}) / √d,   R_p = [sin(p ω), cos(p ω)]
    out_i = Σ_j softmax_j(s_ij) v_j,   a − memory <= j <= i,   a = start of i's segment

u and v are learned per head, ω_t = 10000^(−2t/c). A token reads its segment up to itself and the
`memory` tokens before the segment, so one pass over a long sequence is the paper's walk from
segment to segment with a cache; memory >= n is dense causal attention with relative positions.
Gradients stop at the memory, though not at the projections of it (`detach`). Bidirectional: no
segments and no memory, every token reads all, as in XLNet.
Time O(n·(segment + memory)·d), memory O(h·n·(segment + memory)); bidirectional n instead of
segment + memory. Decoding keeps keys and values of the open segment and the memory before it.

Paper: Dai et al. 2019, Transformer-XL, section 3, https://arxiv.org/abs/1901.02860
Differs from it: all segments of a pass run at once, and keys and values are cached rather than the
hidden states: the same while the weights do not change. Segments count from the first token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.kernels.dense.reference import expand_heads
from weft.layers.projections.dense import split_heads
from weft.mixers.base import MIXERS, Frame, State, Traits
from weft.mixers.base.relative import RelativeAttention, cut, sinusoid, windows


@MIXERS.register("transformer_xl")
@dataclass(frozen=True, kw_only=True)
class TransformerXL:
    """Segment-level recurrence with relative positions."""

    segment: int = 512  # tokens that are read together; from its start reaches the memory
    memory: int = 512  # tokens read before the segment
    detach: bool = True  # stop gradients at the memory, as in the paper

    traits = Traits(
        family="recurrence",
        paper="Dai et al. 2019, https://arxiv.org/abs/1901.02860",
        time="n·(segment + memory)·d",
        memory="h·n·(segment + memory)",
        context_parallel="tokens of the segments that memory reaches; both ways, tokens by heads "
        "(all-to-all)",
        state="2·(segment + memory)·g·d",
        exact=True,
        causal=True,
        note="its keys are the segment and the memory of the same sequence",
    )

    def __post_init__(self) -> None:
        for field, least in (("segment", 1), ("memory", 0)):
            if getattr(self, field) < least:
                raise WeftError(f"{field} is at least {least}; got {field}={getattr(self, field)}")

    @staticmethod
    def small() -> TransformerXL:
        """A size at which some dozens of tokens make many segments."""
        return TransformerXL(segment=8, memory=12)

    @staticmethod
    def variants() -> tuple[TransformerXL, ...]:
        """Memory across and within segments, none, and one that lets gradients through."""
        return (
            TransformerXL.small(),
            TransformerXL(segment=8, memory=3, detach=False),
            TransformerXL(segment=5, memory=0),
        )

    def build(self, frame: Frame) -> TransformerXLAttention:
        return TransformerXLAttention(self, frame)


@dataclass(kw_only=True)
class TransformerXLState(State):
    """Keys and values (b, g, t, d) of the open segment and of the memory before it."""

    k: Tensor
    v: Tensor


class TransformerXLAttention(RelativeAttention):
    """All segments at once, each with the memory before it."""

    def mix(
        self,
        x: Tensor,
        valid: Tensor | None,
        context: Tensor | None,
        context_valid: Tensor | None,
    ) -> Tensor:
        """All segments at once, or, bidirectional, all tokens."""
        q, k, v = self.heads(x)
        if not self.frame.causal:
            visible = torch.ones_like(x[:, :, 0], dtype=torch.bool) if valid is None else valid
            # A row of padding alone reads itself, so that it stays finite.
            visible = (visible | ~visible.any(1, keepdim=True))[:, None, None]  # (b, 1, 1, n)
            return self.project.out(self.attend(q, k, v, visible))
        kept = (k, v)
        if self.config.detach and x.requires_grad:
            kept = (self.project.k(x.detach()), self.project.v(x.detach()))
        return self.project.out(self.segments(q, (k, v), kept))

    def segments(
        self, q: Tensor, own: tuple[Tensor, Tensor], kept: tuple[Tensor, Tensor]
    ) -> Tensor:
        """q (b, h, n, d); keys and values (b, g, n, d) to read in the segment, and as memory."""
        n, size = q.shape[2], min(self.config.segment, q.shape[2])
        count = -(-n // size)
        memory = min(self.config.memory, (count - 1) * size)
        q = cut(q, size, count)  # (b·s, h, a, d)
        k, v = (
            torch.cat((windows(past, size, memory, count), cut(new, size, count)), 2)
            for past, new in zip(kept, own, strict=True)
        )  # (b·s, g, m, d)
        start = torch.arange(count, device=q.device)[:, None, None] * size
        i = torch.arange(size, device=q.device)[:, None]
        j = torch.arange(-memory, size, device=q.device)
        mask = ((j <= i) & (start + j >= 0)).repeat(len(q) // count, 1, 1)[
            :, None
        ]  # (b·s, 1, a, m)
        y = self.attend(q, k, v, mask)  # (b·s, h, a, d)
        return y.unflatten(0, (-1, count)).transpose(1, 2).flatten(2, 3)[:, :, :n]

    def reference(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
    ) -> Tensor:
        """Query by query, each with the set of keys it reads."""
        h, n = self.frame.heads, x.shape[1]
        q, k, v = (expand_heads(t, h) for t in self.heads(x))
        past_k, past_v = (k, v)
        if self.frame.causal and self.config.detach:
            _, past_k, past_v = (expand_heads(t, h) for t in self.heads(x.detach()))
        u, w = self.content_bias[:, None], self.distance_bias[:, None]  # (h, 1, d)
        rows = []
        for i in range(n):
            start = i // self.config.segment * self.config.segment if self.frame.causal else 0
            first = max(0, start - self.config.memory) if self.frame.causal else 0
            last = i if self.frame.causal else n - 1
            keys = torch.cat((past_k[:, :, first:start], k[:, :, start : last + 1]), 2)
            values = torch.cat((past_v[:, :, first:start], v[:, :, start : last + 1]), 2)
            r = sinusoid(i - torch.arange(first, last + 1, device=x.device), x.shape[2])
            r = split_heads(self.to_r(r.to(x.dtype))[None], h)  # (1, h, _, d)
            one = q[:, :, i : i + 1]  # (b, h, 1, d)
            s = ((one + u) * keys + (one + w) * r).sum(-1) * q.shape[-1] ** -0.5  # (b, h, _)
            if valid is not None and not self.frame.causal:
                some = valid | ~valid.any(1, keepdim=True)
                s = s.masked_fill(~some[:, None], float("-inf"))
            rows.append((s.softmax(-1)[..., None] * values).sum(2))  # (b, h, d)
        return self.project.out(torch.stack(rows, 2))

    def start(self, batch: int = 1) -> TransformerXLState:
        """No tokens yet."""
        self._need_causal()
        empty = self.to_r.weight.new_zeros(batch, self.frame.kv_heads, 0, self.frame.head_dim)
        return TransformerXLState(k=empty, v=empty.clone())

    def _step_in_segment(
        self, x: Tensor, state: TransformerXLState
    ) -> tuple[Tensor, TransformerXLState]:
        q, k, v = self.heads(x)
        k, v = torch.cat((state.k, k), 2), torch.cat((state.v, v), 2)  # (b, g, m, d)
        (n, m), position = (x.shape[1], k.shape[2]), state.position + x.shape[1]
        mask = torch.ones(n, m, dtype=torch.bool, device=x.device).tril(m - n)
        y = self.project.out(self.attend(q, k, v, mask))
        kept = self._kept(position)
        if kept < m:
            k, v = k[:, :, m - kept :].clone(), v[:, :, m - kept :].clone()
        return y, TransformerXLState(position=position, k=k, v=v)

    def state_size(self, tokens: int) -> int:
        """A key and a value for each token that is still read."""
        self._need_causal()
        return 2 * self._kept(tokens) * self.frame.kv_heads * self.frame.head_dim
