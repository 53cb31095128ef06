"""Mixers that compress keys into slots.

linear   each rank adds up its columns of E x; the slots are summed over the ranks
blocks   a rank makes the slots that begin with it, from its own keys and those of the block
         that a border cuts; all slots go to all ranks
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.kernels.dense.reference import expand_heads
from weft.layers.compress import BlockCompression, LinearCompression, hide
from weft.mixers.linformer import LinformerAttention
from weft.mixers.memory_compressed import MemoryCompressedAttention
from weft.scale.context.bill import Bill, moved, summed
from weft.scale.context.families.tokens import (
    heads,
    heads_bill,
    near_bill,
)
from weft.scale.context.shards import Shards
from weft.scale.context.split import Given, parallel
from weft.scale.context.world import World, tied


def slot_numbers(shards: Shards, width: int) -> list[tuple[int, int]]:
    """The slots that begin on each rank: the first, and the end."""
    begins = -(-shards.edges // width)
    total = -(-shards.length // width)
    return [(min(int(a), total), min(int(b), total)) for a, b in pairwise(begins)]


def _linear(mixer: Any) -> bool:
    return isinstance(mixer, LinformerAttention) and isinstance(mixer.compress_k, LinearCompression)


def _width(mixer: Any) -> int:
    assert isinstance(mixer.compress_k, BlockCompression)
    return mixer.compress_k.width


def _bill(mixer: Any, shards: Shards, batch: int, itemsize: int) -> Bill:
    frame = mixer.frame
    numbers = batch * frame.kv_heads * 2 * frame.head_dim
    projections = heads_bill(mixer, shards, batch, itemsize)
    if _linear(mixer):
        rank = mixer.compress_k.weight.shape[1]
        return projections + summed(shards.ranks, numbers * rank, itemsize)
    width = _width(mixer)
    before = width - 1 if frame.causal and isinstance(mixer, LinformerAttention) else 0
    counts = np.array([b - a for a, b in slot_numbers(shards, width)])
    slots = moved(np.repeat(counts[:, None], shards.ranks, 1), numbers, itemsize)
    return projections + near_bill(shards, before, width - 1, numbers, itemsize) + slots


@parallel(LinformerAttention, bill=_bill)
def mix_linformer(mixer: LinformerAttention, x: Tensor, given: Given, world: World) -> Tensor:
    """Slots of all ranks; causally, the open block token by token."""
    q, k, v, valid, source = _projected(mixer, x, given, world)
    if _linear(mixer):
        slots_k, slots_v = _summed(mixer, k, v, valid, source)
        y = F.scaled_dot_product_attention(
            *(q, expand_heads(slots_k, q.shape[1]), expand_heads(slots_v, q.shape[1])),
            dropout_p=mixer.dropout,
        )
        return mixer.project.out(y)
    width, causal = _width(mixer), mixer.frame.causal and given.context is None
    wide, lead = source.near(torch.cat((k, v), -1), width - 1 if causal else 0, width - 1)
    slots_k, slots_v = _slots(mixer, wide, lead, valid, source)
    if not causal:
        mask = _slot_mask(valid, width, source)
        y = F.scaled_dot_product_attention(
            *(q, expand_heads(slots_k, q.shape[1]), expand_heads(slots_v, q.shape[1])),
            attn_mask=mask,
            dropout_p=mixer.dropout,
        )
        if mask is not None:
            y = y.masked_fill(~_some(valid, source)[:, None, None, None], 0.0)
        return mixer.project.out(y)
    first = lead - world.start % width  # of the open block that the own tokens begin in
    open_k, open_v = wide[:, :, first : lead + world.count].chunk(2, -1)
    y = mixer._causal(q, (slots_k, slots_v), (open_k, open_v), start=world.start)
    return mixer.project.out(y)


@parallel(MemoryCompressedAttention, bill=_bill)
def mix_memory(mixer: MemoryCompressedAttention, x: Tensor, given: Given, world: World) -> Tensor:
    """The null slot and the slots of all ranks."""
    q, k, v, valid, source = _projected(mixer, x, given, world)
    wide, lead = source.near(torch.cat((k, v), -1), 0, _width(mixer) - 1)
    if mixer.frame.causal and given.context is None:
        slots_k, slots_v = _slots(mixer, wide, lead, None, source)
        return mixer.project.out(mixer.causal(q, slots_k, slots_v, world.start))
    slots_k, slots_v = _slots(mixer, wide, lead, valid, source)
    mask = None
    if valid is not None:
        lengths = _lengths(valid, source)
        begin = torch.arange(slots_k.shape[2], device=q.device) * _width(mixer)
        mask = (begin < lengths[:, None])[:, None, None]
    return mixer.project.out(mixer.read(q, slots_k, slots_v, mask))


def _projected(
    mixer: Any, x: Tensor, given: Given, world: World
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, World]:
    """q, k, v, the mask of the keys, and the world that they live in."""
    if given.context is None:
        return *heads(mixer, x, world), given.valid, world
    assert given.source is not None
    return *mixer.heads(x, given.context), given.context_valid, given.source


def _summed(
    mixer: LinformerAttention, k: Tensor, v: Tensor, valid: Tensor | None, source: World
) -> tuple[Tensor, Tensor]:
    own = slice(source.start, source.end)
    parts = []
    for compress, tokens in ((mixer.compress_k, k), (mixer.compress_v or mixer.compress_k, v)):
        assert isinstance(compress, LinearCompression)
        compress.check(source.length)
        parts.append(compress.weight[..., own] @ hide(tokens, valid))  # (b, g, r, d)
    slots_k, slots_v = source.sum(torch.cat(parts, -1)).chunk(2, -1)
    return slots_k, slots_v


def _slots(
    mixer: Any, wide: Tensor, lead: int, valid: Tensor | None, source: World
) -> tuple[Tensor, Tensor]:
    """All slots (b, g, s, d), from keys and values (b, g, _, 2d) of which `lead` come before."""
    width, numbers = _width(mixer), slot_numbers(source.shards, _width(mixer))
    first, end = numbers[source.rank]
    real = None
    if valid is not None:
        # Real tokens come first in each row, so the length says which are real anywhere.
        index = torch.arange(source.start - lead, source.start - lead + wide.shape[2])
        real = index.to(wide.device) < _lengths(valid, source)[:, None]  # (b, _)
    begin = first * width - source.start + lead
    reach = min(begin + (end - first) * width, wide.shape[2])
    k, v = wide[:, :, begin:reach].chunk(2, -1)
    mine = None if real is None else real[:, begin:reach]
    compress_v = mixer.compress_v or mixer.compress_k
    if end > first:
        own = torch.cat((mixer.compress_k(k, mine), compress_v(v, mine)), -1)
    else:
        own = tied(torch.cat((k, v), -1)[:, :, :0], wide)
    counts = [b - a for a, b in numbers]
    here = torch.arange(end - first)
    every = source.link.move(own, [here] * source.ranks, counts)
    slots_k, slots_v = every.chunk(2, -1)
    return slots_k, slots_v


def _lengths(valid: Tensor, source: World) -> Tensor:
    lengths = source.lengths(valid)
    assert lengths is not None
    return lengths


def _slot_mask(valid: Tensor | None, width: int, source: World) -> Tensor | None:
    """Which slots hold a real token (b, 1, 1, s); a row of padding alone reads the first."""
    if valid is None:
        return None
    begin = torch.arange(-(-source.length // width), device=valid.device) * width
    return (begin < _lengths(valid, source).clamp(min=1)[:, None])[:, None, None]


def _some(valid: Tensor | None, source: World) -> Tensor:
    assert valid is not None
    return _lengths(valid, source) > 0
