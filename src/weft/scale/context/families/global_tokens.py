"""Mixers with global tokens, and others that join a few summaries of the whole sequence.

longformer, etc     a window (halo), the keys of global tokens to all, their rows by log-sum-exp
bigbird             rows of equal length share a pattern, which is split like any other
split_encode_merge  blocks that borders cut (halo), means of all blocks by a sum
synthesizer         keys and values of all tokens that are read: a row of scores has them all
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.kernels.attend.merge import merge
from weft.kernels.dense.reference import dense_attention, expand_heads
from weft.layers.projections.dense import join_heads, split_heads
from weft.mixers.bigbird import BigBirdAttention
from weft.mixers.etc import ETCAttention
from weft.mixers.longformer import LongformerAttention
from weft.mixers.split_encode_merge import SplitEncodeMergeAttention
from weft.mixers.synthesizer import SynthesizerAttention
from weft.patterns import SameBlock
from weft.scale.context.attention import attend
from weft.scale.context.bill import Bill, attention_bill, moved, summed
from weft.scale.context.families.latents import softmax_bill
from weft.scale.context.families.tokens import around_bill, counts_of, heads, heads_bill, near_bill
from weft.scale.context.families.under_pattern import bias_of
from weft.scale.context.families.under_pattern import mix as mix_pattern
from weft.scale.context.shards import Shards, Within
from weft.scale.context.split import Given, parallel
from weft.scale.context.world import World, outside, tied


def _sizes(mixer: Any, batch: int, itemsize: int) -> dict[str, Any]:
    frame = mixer.frame
    sizes = {"heads": frame.heads, "kv_heads": frame.kv_heads, "width": frame.head_dim}
    return sizes | {"batch": batch, "itemsize": itemsize, "biased": bias_of(mixer) is not None}


def _bigbird_bill(mixer: BigBirdAttention, shards: Shards, batch: int, itemsize: int) -> Bill:
    pattern = mixer.config.pattern(mixer.frame, shards.length)
    projections = heads_bill(mixer, shards, batch, itemsize)
    return projections + attention_bill(pattern, shards, **_sizes(mixer, batch, itemsize))


@parallel(BigBirdAttention, bill=_bigbird_bill, contiguous=False)
def mix_bigbird(mixer: BigBirdAttention, x: Tensor, given: Given, world: World) -> Tensor:
    """Rows whose number of blocks is equal run together, as in `BigBirdAttention.attention`."""
    q, k, v = heads(mixer, x, world)
    segments, block, n = given.marks.get("segments"), mixer.config.block, world.length
    settings: dict[str, Any] = {"bias": bias_of(mixer), "dropout": mixer.dropout}
    lengths = world.lengths(given.valid)
    if lengths is None or mixer.frame.causal:
        pattern = mixer.config.pattern(mixer.frame, n)
        out, _ = attend(q, k, v, pattern, world, valid=given.valid, segments=segments, **settings)
        return mixer.project.out(out)
    assert given.valid is not None
    counts = [max(1, -(-length // block)) for length in lengths.tolist()]
    out = torch.zeros_like(q)
    for count in sorted(set(counts)):
        rows = torch.tensor([a for a, c in enumerate(counts) if c == count], device=q.device)
        pattern = mixer.config.pattern(mixer.frame, min(count * block, n))
        documents = None if segments is None else segments[rows]
        part, _ = attend(
            *(q[rows], k[rows], v[rows], Within(pattern, min(count * block, n)), world),
            valid=given.valid[rows],
            segments=documents,
            **settings,
        )
        out = out.index_copy(0, rows, part)
    return mixer.project.out(out)


def _long_bill(mixer: LongformerAttention, shards: Shards, batch: int, itemsize: int) -> Bill:
    bill = heads_bill(mixer, shards, batch, itemsize)
    sizes = _sizes(mixer, batch, itemsize)
    bill = bill + attention_bill(mixer.pattern, shards, **sizes)
    count = min(mixer.config.global_first, shards.length)
    if mixer.frame.causal or not count:
        return bill
    frame = mixer.frame
    return bill + _asking_bill(shards, count, batch * frame.heads, frame.head_dim, itemsize)


def _asking_bill(shards: Shards, count: int, rows: int, width: int, itemsize: int) -> Bill:
    """The first tokens ask all ranks: their queries go out, and the softmax is joined."""
    needs = [outside(shards, rank, 0, count) for rank in range(shards.ranks)]
    out = moved(counts_of(shards, needs), rows * width, itemsize)
    return out + softmax_bill(shards, rows * count, width, itemsize)


@parallel(LongformerAttention, bill=_long_bill)
def mix_longformer(mixer: LongformerAttention, x: Tensor, given: Given, world: World) -> Tensor:
    """The window, the global keys, and the rows of global tokens."""
    if mixer.frame.causal:
        return mix_pattern(mixer, x, given, world)
    is_global = given.marks.get("is_global")
    if is_global is not None:
        return _marked(mixer, x, given, is_global, world)
    q, k, v = heads(mixer, x, world)
    settings: dict[str, Any] = {"valid": given.valid, "dropout": mixer.dropout}
    out, _ = attend(q, k, v, mixer.pattern, world, bias=bias_of(mixer), **settings)
    count = min(mixer.config.global_first, world.length)
    if not count:
        return mixer.project.out(out)
    if mixer.own_projections:
        q, k, v = _global_heads(mixer, x, world)
    rows = asked_of_all(q, k, v, count, given.valid, world)  # (b, h, count, d)
    own = max(0, min(count, world.end) - world.start)
    mine = rows[:, :, world.start : world.start + own]
    return mixer.project.out(tied(torch.cat((mine, out[:, :, own:]), 2), rows))


def asked_of_all(
    q: Tensor, k: Tensor, v: Tensor, count: int, valid: Tensor | None, world: World
) -> Tensor:
    """The first `count` queries of the sequence over all keys, on every rank: (b, h, count, d)."""
    asks = first_tokens(q, count, world)
    mask = None if valid is None else valid[:, None, None]
    return world.merged(*dense_attention(asks, k, v, mask=mask))


def first_tokens(x: Tensor, count: int, world: World) -> Tensor:
    """The first `count` tokens of the sequence, on every rank, from the own ones (..., n, d)."""
    needs = [outside(world.shards, rank, 0, count) for rank in range(world.ranks)]
    came = world.fetch(x, needs)
    before = int((needs[world.rank] < world.start).sum())
    own = x[..., : max(0, min(count, world.end) - world.start), :]
    return torch.cat((came[..., :before, :], own, came[..., before:, :]), -2)


def _global_heads(
    mixer: LongformerAttention, x: Tensor, world: World
) -> tuple[Tensor, Tensor, Tensor]:
    """By the projections of global tokens: all own tokens."""
    frame, index = mixer.frame, world.positions.to(x.device)
    q = split_heads(mixer.to_q_global(x), frame.heads)
    k = split_heads(mixer.to_k_global(x), frame.kv_heads)
    v = split_heads(mixer.to_v_global(x), frame.kv_heads)
    return mixer.positions.rotate(q, index), mixer.positions.rotate(k, index), v


def _marked(
    mixer: LongformerAttention, x: Tensor, given: Given, is_global: Tensor, world: World
) -> Tensor:
    """Global tokens anywhere, row by row: all ranks learn of all of them."""
    q, k, v = heads(mixer, x, world)
    real = is_global if given.valid is None else is_global & given.valid
    near = ~is_global if given.valid is None else given.valid & ~is_global
    bias, dropout = bias_of(mixer), mixer.dropout
    parts = [attend(q, k, v, mixer.local, world, valid=near, bias=bias, dropout=dropout)]
    mine = int(real.sum(1).max())
    most = int(world.link.largest(torch.tensor([mine], device=x.device)))
    if not most:
        return mixer.project.out(merge(parts)[0])
    order = (~real).to(torch.uint8).argsort(dim=1, stable=True)
    order = order[:, : min(most, order.shape[1])]  # (b, m)
    place = world.positions.to(x.device)[order]
    there = real.gather(1, order)
    keys, values, at, seen = _of_all(k, v, order, place, there, world)
    added = None
    if bias is not None:
        head = torch.arange(q.shape[1], device=q.device)[:, None, None]
        added = bias(head, world.positions.to(x.device)[:, None], at[:, None, None, :])
    mask = seen[:, None, None]
    parts.append(dense_attention(q, keys, values, mask=mask, bias=added, dropout=dropout))
    out = merge(parts)[0]
    if mixer.own_projections:
        q, k, v = _global_heads(mixer, x, world)
    asks = q.gather(2, order[:, None, :, None].expand(-1, q.shape[1], -1, q.shape[3]))
    widths = [min(most, world.shards.count(rank)) for rank in range(world.ranks)]
    every = world.link.move(asks, _from_all(widths[world.rank], world), widths)
    mask = None if given.valid is None else given.valid[:, None, None]
    rows = world.merged(*dense_attention(every, k, v, mask=mask))
    first = sum(widths[: world.rank])
    rows = tied(rows[:, :, first : first + widths[world.rank]], rows)
    index = order[:, None, :, None].expand_as(rows)
    rows = torch.where(there[:, None, :, None], rows, out.gather(2, index))
    return mixer.project.out(out.scatter(2, index, rows))


def _from_all(width: int, world: World) -> list[Tensor | None]:
    here = torch.arange(width)
    return [here] * world.ranks


def _of_all(
    k: Tensor, v: Tensor, order: Tensor, place: Tensor, there: Tensor, world: World
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Keys and values of the marked tokens of all ranks, their places, and which there are."""
    most = int(world.link.largest(torch.tensor([order.shape[1]], device=k.device)))
    widths = [min(most, world.shards.count(rank)) for rank in range(world.ranks)]
    sends = _from_all(order.shape[1], world)
    both = torch.cat((k, v), -1)
    index = order[:, None, :, None].expand(-1, k.shape[1], -1, both.shape[-1])
    keys, values = world.link.move(both.gather(2, index), sends, widths).chunk(2, -1)
    facts = torch.stack((place, there.to(place.dtype)), -1)  # (b, m, 2)
    at, seen = world.link.move(facts, sends, widths).unbind(-1)
    return keys, values, at, seen.bool()


def _etc_bill(mixer: ETCAttention, shards: Shards, batch: int, itemsize: int) -> Bill:
    frame, reach = mixer.frame, mixer.config.window - 1
    bill = heads_bill(mixer, shards, batch, itemsize)
    numbers = batch * frame.kv_heads * 2 * frame.head_dim
    bill = bill + near_bill(shards, reach, reach, numbers, itemsize)
    count = min(mixer.config.global_tokens, shards.length)
    if not count:
        return bill
    needs = [outside(shards, rank, 0, count) for rank in range(shards.ranks)]
    bill = bill + moved(counts_of(shards, needs), numbers, itemsize)
    return bill + _asking_bill(shards, count, batch * frame.heads, frame.head_dim, itemsize)


@parallel(ETCAttention, bill=_etc_bill)
def mix_etc(mixer: ETCAttention, x: Tensor, given: Given, world: World) -> Tensor:
    """Long rows over their window and the global keys, global rows over all."""
    q, k, v = heads(mixer, x, world)
    h, g, reach = q.shape[1], min(mixer.config.global_tokens, world.length), mixer.config.window - 1
    member = given.marks.get("member")
    if member is None:
        member = torch.full_like(x[..., 0], -1, dtype=torch.long)
    both = torch.cat((k, v), -1)
    wide, lead = world.near(both, reach, reach)
    valid = given.valid
    seen = torch.ones_like(x[..., 0], dtype=torch.bool) if valid is None else valid
    real = seen if valid is None else world.near(valid[..., None], reach, reach)[0][..., 0]
    if valid is None:
        real = torch.ones(len(x), wide.shape[2], dtype=torch.bool, device=x.device)
    # Long tokens alone are in the window; global ones are read apart.
    index = torch.arange(world.start - lead, world.start - lead + wide.shape[2], device=x.device)
    out = torch.zeros_like(q)
    first = wide[:, :, :0]
    first_real = real[:, :0]
    if g:
        first = first_tokens(both, g, world)
        lengths = world.lengths(valid)
        count = torch.arange(g, device=x.device)
        first_real = (
            torch.ones(len(x), g, dtype=torch.bool, device=x.device)
            if lengths is None
            else count < lengths[:, None]
        )
    skipped = int((index < g).sum())  # global tokens within the wide shard
    wide, real = wide[:, :, skipped:], real[:, skipped:]
    before = max(0, lead - skipped)
    own_global = max(0, min(g, world.end) - world.start)
    tokens = torch.cat((first, wide), 2)
    k_all, v_all = (expand_heads(y, h) for y in tokens.chunk(2, -1))
    rows = q[:, :, own_global:]
    after = wide.shape[2] - before - rows.shape[2]
    asks = torch.nn.functional.pad(rows, (0, 0, g + before, after))
    names = torch.nn.functional.pad(member[:, own_global:], (g + before, after), value=-1)
    if rows.shape[2]:
        # As if the sequence were the global tokens and this neighbourhood.
        long = mixer._long_rows(asks, k_all, v_all, torch.cat((first_real, real), 1), names, g)
        long = long[:, :, before : before + rows.shape[2]]
    else:
        long = tied(rows, k_all, v_all)
    # Where all tokens are global, the projection of long ones is unused, as in one process.
    out = mixer.project.out(long) if g < world.length else x[:, own_global:]
    if not g:
        return out
    top = _global_rows(mixer, q, k, v, seen, member, g, world)
    to_out = mixer.to_out_global if mixer.config.own_output else mixer.project.to_out
    mine = top[:, :, world.start : world.start + own_global]
    return torch.cat((to_out(join_heads(tied(mine, top))), tied(out, tokens)), 1)


def _global_rows(
    mixer: ETCAttention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Tensor,
    member: Tensor,
    g: int,
    world: World,
) -> Tensor:
    """The rows of the global tokens over the keys of all ranks: (b, h, g, d), on every rank."""
    asks, clip = first_tokens(q, g, world), mixer.config.clip
    scores = asks @ mixer.global_labels.transpose(-1, -2) * q.shape[-1] ** -0.5  # (b, h, g, labels)
    number = torch.arange(g, device=q.device)[:, None]  # (g, 1)
    place = world.positions.to(q.device)  # (n,)
    label = (place - number).clamp(-clip, clip) + clip  # (g, n)
    stands = torch.where(member[:, None] == number, 2 * clip + 1, 2 * clip + 2)  # (b, g, n)
    label = torch.where(place < g, label, stands)  # (b, g, n)
    bias = scores.gather(-1, label[:, None].expand(-1, q.shape[1], -1, -1))
    return world.merged(*dense_attention(asks, k, v, mask=seen[:, None, None], bias=bias))


def _merge_bill(
    mixer: SplitEncodeMergeAttention, shards: Shards, batch: int, itemsize: int
) -> Bill:
    bill = heads_bill(mixer, shards, batch, itemsize)
    pattern = SameBlock(mixer.config.block)
    bill = bill + attention_bill(pattern, shards, **_sizes(mixer, batch, itemsize))
    blocks = -(-shards.length // mixer.config.block)
    return bill + summed(shards.ranks, batch * blocks * mixer.frame.dim, max(itemsize, 4))


@parallel(SplitEncodeMergeAttention, bill=_merge_bill)
def mix_blocks(mixer: SplitEncodeMergeAttention, x: Tensor, given: Given, world: World) -> Tensor:
    """Blocks attend within themselves, their means to each other on every rank."""
    w, n = mixer.config.block, world.length
    q, k, v = heads(mixer, x, world)
    settings: dict[str, Any] = {"bias": bias_of(mixer), "dropout": mixer.dropout}
    out, _ = attend(q, k, v, SameBlock(w), world, valid=given.valid, **settings)
    local = mixer.project.out(out)
    if given.valid is not None:
        local = local.masked_fill(~given.valid[..., None], 0.0)
    blocks, lengths = -(-n // w), world.lengths(given.valid)
    own = world.positions.to(x.device) // w  # (n,)
    work = torch.promote_types(x.dtype, torch.float32)
    sums = x.new_zeros(len(x), blocks, local.shape[-1], dtype=work)
    sums = world.sum(sums.index_add(1, own, local.to(work)))
    begin = torch.arange(blocks, device=x.device) * w
    whole = torch.full((1,), n, device=x.device) if lengths is None else lengths
    count = (whole[:, None] - begin).clamp(0, w)  # (b, blocks)
    embedding = (sums / count.clamp(min=1)[..., None]).to(x.dtype)
    joined = mixer._joined(embedding, None if lengths is None else count > 0)
    return local + joined.index_select(1, own)


def _made_bill(mixer: SynthesizerAttention, shards: Shards, batch: int, itemsize: int) -> Bill:
    frame = mixer.frame
    numbers = batch * frame.kv_heads * frame.head_dim * (2 if mixer.compares else 1)
    end = [int(e) if frame.causal else shards.length for e in shards.edges[1:]]
    return around_bill(shards, [(0, e) for e in end], numbers, itemsize)


@parallel(SynthesizerAttention, bill=_made_bill)
def mix_synthesizer(mixer: SynthesizerAttention, x: Tensor, given: Given, world: World) -> Tensor:
    """Own rows of scores, over the values of all tokens that they weigh."""
    k, v = mixer._keys_values(x, world.start)
    both = v if k is None else torch.cat((k, v), -1)
    every = world.until_here(both) if mixer.frame.causal else world.every(both)
    if k is not None:
        k, v = every.chunk(2, -1)
    else:
        v = every
    lengths = world.lengths(given.valid)
    valid = None
    if lengths is not None:
        valid = torch.arange(v.shape[2], device=x.device) < lengths[:, None]
    return mixer._read(x, k, v, valid, start=world.start)
