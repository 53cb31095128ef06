"""Mixers that run along the sequence: convolutions, recurrences, segments with a memory.

convolution   the tokens that taps reach over the borders (a halo)
recurrence    the state of the rank before, in turn: rank r waits for r others, as the
              recurrence itself does
segments      the segment that a border cuts, and the memory before it
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.mixers.base.convolution import ConvolutionMixer
from weft.mixers.base.recurrent import Memory, RecurrentCell, RecurrentMixer
from weft.mixers.compressive import CompressiveAttention
from weft.mixers.evolved_convolution import EvolvedConvolutionMixing
from weft.scale.context.bill import Bill, moved
from weft.scale.context.families.tokens import around_bill, near_bill
from weft.scale.context.shards import Shards
from weft.scale.context.split import Given, parallel
from weft.scale.context.world import World, tied

MASK = 1  # byte of a mask that travels with a token


def taps_reach(mixer: Any) -> tuple[int, int]:
    """Tokens before and after its own that a token's output depends on."""
    if isinstance(mixer, ConvolutionMixer):
        return mixer.before, mixer.kernel - 1 - mixer.before
    first = (mixer.wide, mixer.narrow)
    before = max(one.before for one in first) + mixer.last.before
    after = max(one.taps - 1 - one.before for one in first)
    return before, after + mixer.last.taps - 1 - mixer.last.before


def _taps_bill(mixer: Any, shards: Shards, batch: int, itemsize: int) -> Bill:
    return near_bill(shards, *taps_reach(mixer), batch * mixer.frame.dim, itemsize)


@parallel(ConvolutionMixer, EvolvedConvolutionMixing, bill=_taps_bill)
def mix_taps(mixer: Any, x: Tensor, given: Given, world: World) -> Tensor:
    """The mixer on its own tokens with those that taps reach."""
    wide, lead = world.near(x, *taps_reach(mixer))
    valid = None
    if given.valid is not None:
        valid = world.near(given.valid[..., None], *taps_reach(mixer))[0][..., 0]
    return mixer.mix(wide, valid, None, None)[:, lead : lead + world.count]


def _state_numbers(mixer: RecurrentMixer) -> int:
    cell = mixer.cells[0]
    assert isinstance(cell, RecurrentCell)
    return sum(part[0].numel() for part in cell.start(1))


def _recurrent_bill(mixer: RecurrentMixer, shards: Shards, batch: int, itemsize: int) -> Bill:
    numbers, ranks = batch * _state_numbers(mixer), shards.ranks
    work = mixer.cells[0].start(1)[0].element_size()  # type: ignore[operator]  # a cell
    bill = moved(np.eye(ranks, k=1, dtype=np.int64), numbers, work)
    if len(mixer.cells) > 1:
        bill = bill + moved(np.eye(ranks, k=-1, dtype=np.int64), numbers, work)
    return bill


@parallel(RecurrentMixer, bill=_recurrent_bill)
def mix_recurrent(mixer: RecurrentMixer, x: Tensor, given: Given, world: World) -> Tensor:
    """From the left, and from the right: each rank goes on where its neighbour stopped."""
    y = [_run_on(_cell(mixer, 0), x, None, world, range(world.ranks))]
    if len(mixer.cells) > 1:
        back = range(world.ranks - 1, -1, -1)
        # Before the last real token of a row stands nothing: the state is still that of the start.
        lengths = None if given.valid is None else given.valid.sum(1).tolist()
        turned = _turned(x, lengths)
        y.append(_turned(_run_on(_cell(mixer, 1), turned, lengths, world, back), lengths))
    return mixer.to_out(torch.cat(y, dim=-1))


def _cell(mixer: RecurrentMixer, direction: int) -> RecurrentCell:
    cell = mixer.cells[direction]
    assert isinstance(cell, RecurrentCell)
    return cell


def _run_on(
    cell: RecurrentCell, x: Tensor, lengths: list[int] | None, world: World, order: range
) -> Tensor:
    """The cell over the own tokens, from the state of the rank before it in this order."""
    memory = cell.start(len(x))
    memory = tuple(part + x.flatten()[:0].sum().to(part.dtype) for part in memory)
    y, after, row = x, memory, torch.zeros(1, dtype=torch.long)
    for turn, rank in enumerate(order):
        if rank == world.rank:
            y, after = _real_run(cell, x, memory, lengths)
        if turn + 1 == len(order):
            break
        reader = order[turn + 1]
        packed = torch.cat([part.flatten(1) for part in after], -1).reshape(1, -1)
        sends = [row if world.rank == rank and r == reader else None for r in range(world.ranks)]
        receives = [int(world.rank == reader and r == rank) for r in range(world.ranks)]
        came = world.link.move(packed, sends, receives)
        if world.rank == reader:
            memory = _unpacked(came[0], memory)
        # Every turn depends on the one before, so all ranks run backwards in the same order.
        after = tuple(tied(part, came) for part in (after if world.rank != reader else memory))
        y = tied(y, came) if y is not x else y
    return tied(y, *after)


def _unpacked(row: Tensor, like: Memory) -> Memory:
    widths = [part[0].numel() for part in like]
    parts = row.view(len(like[0]), -1).split(widths, -1)
    return tuple(part.view_as(one) for part, one in zip(parts, like, strict=True))


def _real_run(
    cell: RecurrentCell, x: Tensor, memory: Memory, lengths: list[int] | None
) -> tuple[Tensor, Memory]:
    """The cell over the real tokens of each row; rows of equal length run together."""
    n = x.shape[1]
    if lengths is None or set(lengths) == {n}:
        return cell(x, memory)
    rows_y: list[Tensor] = [x[:0]] * len(x)
    rows_after: list[Memory] = [()] * len(x)
    for length in sorted(set(lengths)):
        own = [a for a, each in enumerate(lengths) if each == length]
        index = torch.tensor(own, device=x.device)
        state = tuple(part[index] for part in memory)
        y = x[index]
        if length:
            run, state = cell(x[index, :length], state)
            y = torch.nn.functional.pad(run, (0, 0, 0, n - length))
        for a, at in enumerate(own):
            rows_y[at], rows_after[at] = y[a], tuple(part[a] for part in state)
    after = zip(*rows_after, strict=True)
    return torch.stack(rows_y), tuple(torch.stack(part) for part in after)


def _turned(x: Tensor, lengths: list[int] | None) -> Tensor:
    """The real tokens of each row in the opposite order; they come first. Its own inverse."""
    if lengths is None:
        return x.flip(1)
    rows = zip(x, lengths, strict=True)
    return torch.stack([torch.cat((row[:n].flip(0), row[n:])) for row, n in rows])


def memory_ranges(mixer: Any, shards: Shards) -> list[tuple[int, int]]:
    """For each rank, whole segments from the first that its tokens' memory reaches."""
    config, ranges = mixer.config, []
    reach = config.memory
    if isinstance(mixer, CompressiveAttention):
        reach += config.compressed * config.ratio
    for rank in range(shards.ranks):
        start, end = int(shards.edges[rank]), int(shards.edges[rank + 1])
        first = max(0, start // config.segment * config.segment - reach)
        ranges.append((first // config.segment * config.segment, end))
    return ranges


def segments_bill(mixer: Any, shards: Shards, batch: int, itemsize: int) -> Bill:
    """Tokens of the segments before."""
    return around_bill(shards, memory_ranges(mixer, shards), batch * mixer.frame.dim, itemsize)


def mix_segments(mixer: Any, x: Tensor, given: Given, world: World) -> Tensor:
    """The mixer on its own segments with those that their memory reaches."""
    ranges = memory_ranges(mixer, world.shards)
    wide = world.around(x, ranges)
    lead = world.start - ranges[world.rank][0]
    return mixer.mix(wide, None, None, None)[:, lead : lead + world.count]


@parallel(CompressiveAttention, bill=segments_bill)
def mix_compressive(mixer: CompressiveAttention, x: Tensor, given: Given, world: World) -> Tensor:
    """Segments with memory and slots."""
    return mix_segments(mixer, x, given, world)
