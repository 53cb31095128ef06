"""Mixers whose few vectors read all tokens: latents, induced points, landmarks.

The vectors are the same on every rank. Each rank lets them read its own tokens; the partial softmax
of the ranks is joined by log-sum-exp in two sums over the ranks. Tokens then read the vectors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.kernels.attend.api import attend
from weft.kernels.dense.reference import dense_attention, expand_heads
from weft.kernels.nystrom.reference import read_landmarks, segments, solve
from weft.layers.compress import hide
from weft.layers.cross_attention import CrossAttention
from weft.layers.latents import LatentBlock
from weft.mixers.base.latent import LatentMixer
from weft.mixers.nystromformer import NystromformerAttention
from weft.mixers.perceiver import PerceiverMixing
from weft.scale.context.bill import Bill, summed
from weft.scale.context.families.tokens import around_bill, heads, heads_bill, near_bill
from weft.scale.context.shards import Shards
from weft.scale.context.split import Given, parallel
from weft.scale.context.world import World


def softmax_bill(shards: Shards, rows: int, width: int, itemsize: int) -> Bill:
    """Rows of so many numbers and their weights, summed; before, their largest exponents."""
    work = max(itemsize, 4)
    return summed(shards.ranks, rows * (width + 1), work) + summed(
        shards.ranks, rows, work, learned=False
    )


def readers(mixer: LatentMixer) -> list[tuple[CrossAttention, int]]:
    """The attention in which vectors read tokens, and how often each runs."""
    if isinstance(mixer, PerceiverMixing):
        found = [block for block in mixer.latents.read if isinstance(block, LatentBlock)]
        later = mixer.latents.repeats - 1
        return [(block.attention, later if a else 1) for a, block in enumerate(found)]
    gather: Any = mixer.gather
    return [(gather.attention, 1)]


def _latent_bill(mixer: Any, shards: Shards, batch: int, itemsize: int) -> Bill:
    frame, config = mixer.frame, mixer.config
    vectors = config.latents if isinstance(mixer, PerceiverMixing) else config.points
    rows = batch * frame.heads * vectors
    times = sum(count for _, count in readers(mixer))
    return softmax_bill(shards, rows, frame.head_dim, itemsize) * times


@parallel(LatentMixer, bill=_latent_bill)
def mix_latents(mixer: LatentMixer, x: Tensor, given: Given, world: World) -> Tensor:
    """Vectors read the tokens of all ranks, own tokens read the vectors."""
    context = given.context is not None
    source, real = (given.context, given.context_valid) if context else (x, given.valid)
    assert source is not None

    def over_ranks(q: Tensor, k: Tensor, v: Tensor, **settings: Any) -> Tensor:
        out, lse = attend(q, k, v, **settings, return_lse=True)
        return world.merged(out, lse)

    chosen = [attention for attention, _ in readers(mixer)]
    try:
        for attention in chosen:
            attention.attend = over_ranks
        latents = mixer.latents_of(source, real, plain=False)
    finally:
        for attention in chosen:
            del attention.attend
    return mixer.spread(x, latents)


def _nystrom_bill(mixer: NystromformerAttention, shards: Shards, batch: int, itemsize: int) -> Bill:
    frame, config = mixer.frame, mixer.config
    h, g, d, r = frame.heads, frame.kv_heads, frame.head_dim, config.landmarks
    bill = heads_bill(mixer, shards, batch, itemsize)
    if shards.length > r:
        bill = bill + summed(shards.ranks, batch * (h + g) * r * d, max(itemsize, 4))
        bill = bill + softmax_bill(shards, batch * h * r, d, itemsize)
    else:
        bill = bill + around_bill(shards, short_ranges(r, shards), batch * g * 2 * d, itemsize)
    if mixer.taps is not None:
        reach = config.kernel // 2
        bill = bill + near_bill(shards, reach, reach, batch * g * d, itemsize)
    return bill


def short_ranges(landmarks: int, shards: Shards) -> list[tuple[int, int]]:
    """What ranks read where rows are short: all tokens of such a row, for ranks that hold some."""
    end = min(landmarks, shards.length)
    edges = shards.edges
    return [
        (0, max(end, int(edges[r + 1]))) if edges[r] < end else (int(edges[r]), int(edges[r + 1]))
        for r in range(shards.ranks)
    ]


@parallel(NystromformerAttention, bill=_nystrom_bill)
def mix_landmarks(mixer: NystromformerAttention, x: Tensor, given: Given, world: World) -> Tensor:
    """Landmarks are summed over the ranks, and read the tokens of all of them."""
    q, k, v = heads(mixer, x, world)
    local, valid, r = v, given.valid, mixer.config.landmarks
    lengths = world.lengths(valid)
    exact = None
    if world.length <= r or lengths is not None:
        exact = _short_rows(mixer, q, k, v, lengths, world)
    if world.length <= r:
        assert exact is not None
        y = exact
    else:
        y = _through_landmarks(mixer, q, k, v, valid, lengths, world)
        if exact is not None and lengths is not None:
            y = torch.where((lengths <= r)[:, None, None, None], exact, y)
    if mixer.taps is not None:
        reach = mixer.config.kernel // 2
        wide, lead = world.near(hide(local, valid), reach, reach)
        near = mixer.local(wide, mixer.taps)[:, :, lead : lead + world.count]
        y = y + expand_heads(near, q.shape[1])
    return mixer.project.out(y)


def _through_landmarks(
    mixer: NystromformerAttention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor | None,
    lengths: Tensor | None,
    world: World,
) -> Tensor:
    n, h, r = world.length, q.shape[1], mixer.config.landmarks
    whole = torch.full((1,), n, device=q.device) if lengths is None else lengths.clamp(min=1)
    inside, there = segments(whole, n, r)  # (b, r, n), (b, r)
    work = torch.promote_types(q.dtype, torch.float32)
    own = inside[..., world.start : world.end].to(work)[:, None]  # (b, 1, r, own)
    sums = world.sum(torch.cat([own @ hide(x, valid).to(work) for x in (q, k)], 1))
    count = inside.sum(-1).clamp(min=1)[:, None, :, None]
    short_q, short_k = (sums / count).to(q.dtype).split((h, k.shape[1]), 1)
    k, v, short_k = (expand_heads(x, h) for x in (k, v, short_k))
    mask = None if valid is None else valid[:, None, None]
    read = world.merged(*dense_attention(short_q, k, v, mask=mask))  # (b, h, r, d)
    there = there.expand(len(q), -1)
    start = {"shared_start": mixer.config.shared_start}
    joined = solve(short_q, short_k, read, there, mixer.config.iterations, **start)
    return read_landmarks(q, short_k, joined, there, mixer.dropout)


def _short_rows(
    mixer: NystromformerAttention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor | None,
    world: World,
) -> Tensor:
    """Full attention among the first tokens, for rows that have no more than landmarks."""
    ranges = short_ranges(mixer.config.landmarks, world.shards)
    both = world.around(torch.cat((k, v), -1), ranges)
    keys, values = (expand_heads(x, q.shape[1]) for x in both.chunk(2, -1))
    mask = None
    if lengths is not None:
        first = ranges[world.rank][0]
        index = torch.arange(first, first + both.shape[2], device=q.device)
        mask = (index < lengths[:, None])[:, None, None]
    return dense_attention(q, keys, values, mask=mask, dropout=mixer.dropout)[0]
