"""Reformer: its own hashes and chunks, with one matrix of weights stored instead of six.

    P = exp(S − lse),   S = q kᵀ,   −1e9 where hidden, −1e5 at the token itself

The chunk of a token, those before it and the masks are Transformers' (neighbours wrap around from
round to round); tokens are gathered once for each round without copies. The gradient needs q, k, v
and P. Local attention of a decoder is weft's pattern of blocks. Decoding with a cache, sequences of
one chunk and dropout of hashed attention remain theirs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.interop.hf.twins.lean import Twin
from weft.interop.hf.twins.registry import Family, Pass, forward_by, refuse_maps, register
from weft.kernels.attend.api import attend
from weft.layers.projections.dense import join_heads, side_by_side, split_heads
from weft.patterns import BlockNeighbours, Causal

_SELF, _NEVER = -1e5, -1e9


class HashTwin(Twin):
    """The forward of Reformer's hashed attention."""

    def __init__(self, theirs: Any, shared: Pass) -> None:
        self.theirs = theirs

    def __call__(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        num_hashes: int | None = None,
        buckets: Tensor | None = None,
        past_buckets_states: Any = None,
        output_attentions: bool = False,
        **named: Any,
    ) -> Any:
        """(b, n, c) -> what Transformers' answers: values (b, n, h·d), maps, buckets."""
        refuse_maps(output_attentions)
        own, n = self.theirs, hidden_states.shape[1]
        dropped = own.training and own.dropout
        if _cached(own, past_buckets_states) or n <= own.chunk_length or dropped:
            named["past_buckets_states"] = past_buckets_states
            given = (hidden_states, attention_mask, num_hashes, buckets)
            return type(own).forward(own, *given, **named)
        rounds = own.num_hashes if num_hashes is None else num_hashes
        heads, width = own.num_attention_heads, own.attention_head_size
        qk, v = side_by_side(hidden_states, (own.query_key, own.value))
        qk, v = split_heads(qk, heads), split_heads(v, heads)
        if own.num_buckets is None:
            own._set_num_buckets(n)
        if buckets is None:
            buckets = own._hash_vectors(qk, rounds, attention_mask)
        assert buckets is not None
        buckets = buckets.view(len(qk), heads, rounds * n)
        order, back = own._get_sorted_bucket_idx_and_undo_sorted_bucket_idx(n, buckets, rounds)
        token = order % n  # (b, h, r·n)
        q, v = (_chunks(x, token, own.chunk_length) for x in (qk, v))  # (b, h, s, l, d)
        near = (own.num_chunks_before, own.num_chunks_after)
        k, v = (own._look_adjacent(x, *near) for x in (own._len_and_dim_norm(q, width**0.5), v))
        asks = token.unflatten(2, (-1, own.chunk_length))
        hidden, same = _masks(asks, own._look_adjacent(asks, *near), attention_mask, own.is_decoder)
        out, lse = _ChunkAttention.apply(q, k, v, hidden, same)
        out, lse = out.flatten(2, 3), lse.flatten(2)  # (b, h, r·n, d), (b, h, r·n)
        out = out.gather(2, back[..., None].expand_as(out)).unflatten(2, (rounds, n))
        lse = lse.gather(2, back).unflatten(2, (rounds, n))
        # As theirs: where a token meets itself alone, lse is −1e5, and so is the rounding of both.
        weight = (lse - lse.logsumexp(2, keepdim=True)).exp()[..., None].to(out.dtype)
        answer = _output(own, join_heads((out * weight).sum(2)))
        return answer._replace(buckets=buckets.view(len(qk), heads, rounds, -1))


class LocalTwin(Twin):
    """The forward of Reformer's local attention, where no chunk reads ahead around the end."""

    def __init__(self, theirs: Any, shared: Pass) -> None:
        self.theirs = theirs

    def __call__(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_buckets_states: Any = None,
        output_attentions: bool = False,
        **named: Any,
    ) -> Any:
        """(b, n, c) -> what Transformers' answers: values (b, n, h·d), maps."""
        refuse_maps(output_attentions)
        own, n = self.theirs, hidden_states.shape[1]
        chunk = own.chunk_length or n
        if _cached(own, past_buckets_states) or n <= chunk or not own.is_decoder:
            named["past_buckets_states"] = past_buckets_states
            return type(own).forward(own, hidden_states, attention_mask, **named)
        maps = (own.query, own.key, own.value)
        q, k, v = (
            split_heads(y, own.num_attention_heads) for y in side_by_side(hidden_states, maps)
        )
        seen = Causal() & BlockNeighbours(chunk, own.num_chunks_before, 0)
        valid = None if attention_mask is None else attention_mask.to(torch.bool)
        drop = own.dropout if own.training else 0.0
        return _output(own, join_heads(attend(q, k, v, seen, valid=valid, dropout=drop)))


class _ChunkAttention(torch.autograd.Function):
    """Values and log-sum-exp of chunks; the weights alone are stored."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, same: Tensor
    ) -> tuple[Tensor, Tensor]:
        scores = (q @ k.transpose(-1, -2)).to(torch.promote_types(q.dtype, torch.float32))
        if hidden is not None:
            scores.masked_fill_(hidden, _NEVER)
        scores.masked_fill_(same, _SELF)
        lse = scores.logsumexp(-1, keepdim=True)
        weights = scores.sub_(lse).exp_().to(v.dtype)  # (b, h, s, l, m)
        out = weights @ v
        ctx.save_for_backward(q, k, v, hidden, same, weights, out)
        return out, lse.squeeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor, dlse: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, hidden, same, weights, out = ctx.saved_tensors
        dv = weights.transpose(-1, -2) @ dout
        delta = (out * dout).sum(-1, keepdim=True) - dlse[..., None].to(out.dtype)
        ds = (dout @ v.transpose(-1, -2)).sub_(delta).mul_(weights)
        # A score that was replaced has no gradient, even where its weight is not 0.
        ds.masked_fill_(same, 0.0)
        if hidden is not None:
            ds.masked_fill_(hidden, 0.0)
        return ds @ k, ds.transpose(-1, -2) @ q, dv, None, None


def _masks(
    asks: Tensor, reads: Tensor, real: Tensor | None, causal: bool
) -> tuple[Tensor | None, Tensor]:
    """Tokens (b, h, s, l), (b, h, s, m) -> what is hidden, and where a token meets itself."""
    i, j = asks[..., :, None], reads[..., None, :]
    hidden = j > i if causal else None
    if real is not None:
        rows = (real == 0)[:, None, None].expand(*reads.shape[:3], -1)  # (b, h, s, n)
        padding = rows.gather(3, reads)[..., None, :]  # (b, h, s, 1, m)
        hidden = padding if hidden is None else hidden | padding
    return hidden, j == i


def _chunks(x: Tensor, token: Tensor, size: int) -> Tensor:
    """(b, h, n, d) at tokens (b, h, r·n), in chunks: (b, h, s, l, d)."""
    index = token[..., None].expand(-1, -1, -1, x.shape[3])
    return x.gather(2, index).unflatten(2, (-1, size))


def _cached(own: Any, past: Any) -> bool:
    return past is not None and len(past) > own.layer_idx


def _output(own: Any, values: Tensor) -> Any:
    """The tuple that Transformers' module answers with."""
    from transformers.models.reformer import modeling_reformer as theirs

    if hasattr(own, "query_key"):
        return theirs.LSHSelfAttentionOutput(values, (), None)
    return theirs.LocalSelfAttentionOutput(values, ())


register(
    "reformer",
    Family(
        ("Reformer",),
        {"LSHSelfAttention": forward_by(HashTwin), "LocalSelfAttention": forward_by(LocalTwin)},
    ),
)
