"""Chunks of tokens that share a hash bucket, for attention in an order that the tokens choose.

`chunks_of_order` sorts all tokens by (bucket, position) and cuts the order into chunks.
`chunks_of_buckets` cuts each bucket by itself: what precedes a token depends on earlier
tokens alone. Both answer with a `ChunkLayout`; `attend_layout` attends in it and merges the rounds.
Everything is a sort, a gather or a product of chunks: O(n log n) and O(n·chunk), no n × n.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.kernels.attend.merge import merge
from weft.kernels.dense.reference import dense_attention


@dataclass(frozen=True, kw_only=True)
class ChunkLayout:
    """Chunks of all rounds: their queries, the keys these read, where a token's queries are."""

    asks: Tensor  # (b, h, s, c) tokens
    reads: Tensor  # (b, h, s, m) tokens
    mask: Tensor  # (b, h, s, c, m) which of them
    slot: Tensor  # (b, h, r, n) into (s, c), flattened


def attend_layout(
    q: Tensor, k: Tensor, v: Tensor, layout: ChunkLayout, *, scale: float, dropout: float = 0.0
) -> Tensor:
    """(b, h, n, d), (b, h, n, d), (b, h, n, e) -> (b, h, n, e), the rounds merged."""
    heads = q.shape[1]
    o, lse = dense_attention(
        take_rows(q, layout.asks).flatten(1, 2),
        take_rows(k, layout.reads).flatten(1, 2),
        take_rows(v, layout.reads).flatten(1, 2),
        mask=layout.mask.flatten(1, 2),
        scale=scale,
        dropout=dropout,
    )  # (b, h·s, c, e), (b, h·s, c)
    o = o.unflatten(1, (heads, -1)).flatten(2, 3)  # (b, h, s·c, e)
    lse = lse.unflatten(1, (heads, -1)).flatten(2, 3)  # (b, h, s·c)
    by_round = lse.gather(2, layout.slot.flatten(2)).view(layout.slot.shape)  # (b, h, r, n)
    return merge_rounds(take_rows(o, layout.slot), by_round, v)


def merge_rounds(o: Tensor, lse: Tensor, alone: Tensor) -> Tensor:
    """Values (b, h, r, n, e) and log-sum-exp (b, h, r, n) of all rounds -> (b, h, n, e).

    A token that read nothing in any round gets its row of `alone` (b, h, n, e).
    """
    merged, total = merge(list(zip(o.unbind(2), lse.unbind(2), strict=True)))
    return torch.where(total.isneginf()[..., None], alone, merged)


def chunks_of_order(
    buckets: Tensor,
    count: int,
    length: Tensor,
    *,
    size: int,
    lookback: int,
    lookahead: int,
    causal: bool,
    across_rounds: bool,
) -> ChunkLayout:
    """All tokens in order of (bucket, position), padding last, cut into chunks of `size`.

    `buckets` (b, h, r, n) are below `count`; the first `length` (b,) tokens of a row are real.
    No token reads itself. Neighbours wrap around, within a round or from round to round.
    """
    rounds, n = buckets.shape[2:]
    chunks = max(1, -(-n // size))
    order = sorted_order(buckets, count, length, chunks * size)  # (b, h, r, chunks·size)
    shift = torch.arange(rounds, device=order.device)[:, None] * chunks * size
    slot = order.argsort(-1)[..., :n] + shift  # (b, h, r, n)
    asks = order.unflatten(-1, (chunks, size)).flatten(2, 3)  # (b, h, s, c)
    offsets = torch.arange(-lookback, lookahead + 1, device=order.device)
    near, once = neighbours(-(-length // size), chunks, rounds, offsets, across_rounds)
    near = near.flatten(1)[:, None, :, None].expand(-1, asks.shape[1], -1, size)
    reads = asks.gather(2, near).view(*asks.shape[:3], -1)  # (b, h, s, m)
    real = (reads < length[:, None, None, None]) & once.repeat_interleave(size, -1)[:, None]
    i, j = asks[..., :, None], reads[..., None, :]
    mask = real[..., None, :] & ((j < i) if causal else (j != i))  # (b, h, s, c, m)
    return ChunkLayout(
        asks=asks.clamp(max=n - 1), reads=reads.clamp(max=n - 1), mask=mask, slot=slot
    )


def sorted_order(buckets: Tensor, count: int, length: Tensor, places: int) -> Tensor:
    """Tokens by (bucket, position), padding last: (b, h, r, n) -> (b, h, r, places)."""
    place = torch.arange(places, device=buckets.device)
    padding = (place >= length[:, None])[:, None, None]  # (b, 1, 1, places)
    padded = F.pad(buckets, (0, places - buckets.shape[-1])).masked_fill(padding, count)
    return padded.argsort(dim=-1, stable=True)


def attend_first(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    buckets: Tensor,
    count: int,
    length: Tensor,
    *,
    size: int,
    lookback: int,
    lookahead: int,
    scale: float,
    dropout: float = 0.0,
) -> Tensor:
    """The first tokens q (b, h, m, d) among all k, v (b, h, n, d), in `chunks_of_order`, both ways.

    A token is read where its chunk is one of those around the query's, within a round: a mask over
    all tokens, which for a few queries is less work than laying out the chunks.
    """
    rounds, n = buckets.shape[2:]
    first = q.shape[2]
    chunk = sorted_order(buckets, count, length, n).argsort(-1) // size  # (b, h, r, n)
    distance = chunk[..., None, :] - chunk[..., :first, None]  # (b, h, r, m, n)
    used = (-(-length // size)).clamp(min=1)[:, None, None, None, None]
    near = [(distance - offset) % used == 0 for offset in range(-lookback, lookahead + 1)]
    index = torch.arange(n, device=q.device)
    others = (index < length[:, None, None]) & (index != index[:first, None])  # (b, m, n)
    seen = torch.stack(near).any(0) & others[:, None, None]
    q, k, each = (x[:, :, None].expand(-1, -1, rounds, -1, -1).flatten(1, 2) for x in (q, k, v))
    o, lse = dense_attention(
        q, k, each, mask=seen.flatten(1, 2), scale=scale, dropout=dropout
    )  # (b, h·r, m, d), (b, h·r, m)
    shape = (-1, rounds)
    return merge_rounds(o.unflatten(1, shape), lse.unflatten(1, shape), v[:, :, :first])


def neighbours(
    used: Tensor, chunks: int, rounds: int, offsets: Tensor, across_rounds: bool
) -> tuple[Tensor, Tensor]:
    """The chunks that each chunk of all rounds reads (b, s, o), and which of them to count.

    They wrap around the `used` (b,) chunks that hold real tokens, so that more padding changes
    nothing; a ring shorter than the offsets lists a chunk twice, and it counts once.
    """
    used = used.clamp(min=1)[:, None, None]  # (b, 1, 1)
    every = torch.arange(rounds * chunks, device=used.device)[:, None]  # (s, 1)
    if across_rounds:
        ring = (every // chunks * used + every % chunks + offsets) % (rounds * used)
        near = ring // used * chunks + ring % used  # (b, s, o)
    else:
        near = every // chunks * chunks + (every % chunks + offsets) % used  # (b, s, o)
    repeated = (near[..., :, None] == near[..., None, :]).tril(-1).any(-1)
    return near, ~repeated


def chunks_of_buckets(buckets: Tensor, count: int, *, size: int, lookback: int) -> ChunkLayout:
    """Each bucket, in order of position, cut into its own chunks; a token reads what is before it.

    A token's slot in its chunk, and all slots before it, depend on earlier tokens alone; later ones
    fill later slots and move whole chunks, so even the rounding of a row is free of the future.
    `buckets` (b, h, r, n) are below `count`. Free slots hold the token number n, unused.
    """
    rounds, n = buckets.shape[2:]
    token, slot = cut_buckets(buckets, count, size)  # (b, h, r, chunks, size), (b, h, r, n)
    chunks = token.shape[3]
    owner = F.pad(buckets, (0, 1), value=-1).gather(-1, token[..., 0])[..., None]
    reads = look_back(token, lookback, n)  # (b, h, r, chunks, m)
    same = (look_back(owner, lookback, -1) == owner).repeat_interleave(size, -1)
    mask = same[..., None, :] & (reads[..., None, :] < token[..., :, None])
    shift = torch.arange(rounds, device=slot.device)[:, None] * chunks * size
    return ChunkLayout(
        asks=token.clamp(max=n - 1).flatten(2, 3),
        reads=reads.clamp(max=n - 1).flatten(2, 3),
        mask=mask.flatten(2, 3),
        slot=slot + shift,
    )


def cut_buckets(buckets: Tensor, count: int, size: int) -> tuple[Tensor, Tensor]:
    """Each bucket of (..., n), in order, cut into chunks: the order of tokens, and its inverse.

    Items by chunk (..., chunks, size), n in free slots, and each item's slot (..., n), flattened.
    An item's place in its chunk depends on earlier items alone.
    """
    n = buckets.shape[-1]
    order = buckets.argsort(dim=-1, stable=True)  # (..., n)
    number = buckets.gather(-1, order)  # (..., n)
    sizes = buckets.new_zeros(*buckets.shape[:-1], count)
    sizes = sizes.scatter_add(-1, buckets, torch.ones_like(buckets))
    blocks = -(-sizes // size)
    rank = torch.arange(n, device=order.device) - (sizes.cumsum(-1) - sizes).gather(-1, number)
    place = (blocks.cumsum(-1) - blocks).gather(-1, number) * size + rank  # (..., n)
    filled = min(count, n)
    chunks = filled + (n - filled) // size
    item = buckets.new_full((*buckets.shape[:-1], chunks * size), n)
    item = item.scatter(-1, place, order).unflatten(-1, (chunks, size))
    return item, torch.empty_like(place).scatter(-1, order, place)


def look_back(chunks: Tensor, lookback: int, empty: int) -> Tensor:
    """(..., s, c) -> (..., s, m): the `lookback` chunks before each chunk, then the chunk."""
    padded = F.pad(chunks, (0, 0, lookback, 0), value=empty)
    count = chunks.shape[-2]
    return torch.cat([padded[..., o : o + count, :] for o in range(lookback + 1)], -1)


def latest_mates(buckets: Tensor, new: int, *, size: int, lookback: int) -> tuple[Tensor, Tensor]:
    """What `chunks_of_buckets` lets the last `new` tokens read, newest first, and which count.

    (b, h, r, t) -> tokens (b, h, r, n, w) and mask (b, h, r, n, w). O(t) per new token.
    """
    t = buckets.shape[-1]
    index = torch.arange(t, device=buckets.device)
    same = buckets[..., None, :] == buckets[..., t - new :, None]  # (b, h, r, n, t)
    same = same & (index < index[t - new :, None])
    window = min(t, max(1, (1 + lookback) * size - 1))
    latest = torch.where(same, index, -1).topk(window).values  # (b, h, r, n, w)
    reach = same.sum(-1, keepdim=True) % size + lookback * size  # (b, h, r, n, 1)
    return latest.clamp(min=0), (latest >= 0) & (index[:window] < reach)


def attend_latest(
    q: Tensor, k: Tensor, v: Tensor, buckets: Tensor, *, size: int, lookback: int, scale: float
) -> Tensor:
    """The last tokens q (b, h, n, d) among all k, v (b, h, t, d), in `chunks_of_buckets`.

    Each gathers its own keys, instead of laying out all t tokens: for a few tokens, as in decoding.
    `buckets` (b, h, r, t) are those of all tokens.
    """
    n, rounds = q.shape[2], buckets.shape[2]
    reads, mask = latest_mates(buckets, n, size=size, lookback=lookback)
    one = q[:, :, None, :, None].expand(-1, -1, rounds, -1, -1, -1)
    o, lse = dense_attention(
        one.flatten(1, 3),
        take_rows(k, reads).flatten(1, 3),
        take_rows(v, reads).flatten(1, 3),
        mask=mask.flatten(1, 3)[:, :, None],
        scale=scale,
    )  # (b, h·r·n, 1, d), (b, h·r·n, 1)
    return merge_rounds(o.view(one.shape).squeeze(4), lse.view(mask.shape[:-1]), v[:, :, -n:])


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows of x (b, h, n, d) at index (b, h, ...): (b, h, ..., d)."""
    b, h, n, d = x.shape
    first = torch.arange(b * h, device=x.device).view(b, h, *(1,) * (index.dim() - 2)) * n
    return x.reshape(-1, d).index_select(0, (index + first).flatten()).view(*index.shape, d)
