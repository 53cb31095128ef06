"""Mixers under a pattern: keys that the pattern names are fetched, wide rows go round.

A bias that is learned or depends on places is evaluated at the positions of the whole sequence.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor

from weft.kernels.attend.bias import Bias
from weft.mixers.adaptive_span import AdaptiveSpanAttention
from weft.mixers.axial import AxialAttention
from weft.mixers.base.under_pattern import PatternAttention
from weft.mixers.swin import SwinAttention
from weft.patterns import Full, OffsetBlock, Pattern, ShiftedWindow
from weft.scale.context.attention import attend
from weft.scale.context.bill import Bill, attention_bill
from weft.scale.context.families.tokens import heads, heads_bill
from weft.scale.context.shards import Shards, reading
from weft.scale.context.split import Given, parallel
from weft.scale.context.world import World


def _bill(mixer: Any, shards: Shards, batch: int, itemsize: int) -> Bill:
    frame = mixer.frame
    settings = {"heads": frame.heads, "kv_heads": frame.kv_heads, "width": frame.head_dim}
    biased = bias_of(mixer) is not None
    attention = attention_bill(
        pattern_of(mixer, shards.length),
        shards,
        **settings,
        batch=batch,
        itemsize=itemsize,
        biased=biased,
    )
    return heads_bill(mixer, shards, batch, itemsize) + attention


def _held(mixer: Any, shards: Shards, batch: int, itemsize: int) -> int:
    """Keys that are fetched at once, and a copy of the own ones beside them."""
    frame, pattern, rows = mixer.frame, pattern_of(mixer, shards.length), 0
    each = Counter(pattern.head(a, frame.heads) for a in range(frame.heads))
    for kind, heads_of_kind in each.items():
        plan = reading(kind, shards)
        fetched = max(map(len, plan.needs))
        if fetched and (not plan.turns or bias_of(mixer) is not None):
            keys = frame.kv_heads if len(each) == 1 else heads_of_kind
            rows += keys * (shards.size + fetched)
    return batch * rows * 2 * frame.head_dim * itemsize


def pattern_of(mixer: Any, length: int) -> Pattern:
    """The pattern of a mixer over a sequence of this length."""
    if isinstance(mixer, AdaptiveSpanAttention):
        return mixer.reached()
    if isinstance(mixer, SwinAttention):
        return swin_pattern(mixer)
    return mixer.pattern


def bias_of(mixer: Any) -> Bias | None:
    """What a mixer adds to its scores."""
    if isinstance(mixer, SwinAttention):
        return swin_bias(mixer)
    return mixer.positions.at if mixer.positions.biased else None


@parallel(
    *(PatternAttention, AdaptiveSpanAttention, SwinAttention),
    bill=_bill,
    contiguous=False,
    held=_held,
)
def mix(mixer: Any, x: Tensor, given: Given, world: World) -> Tensor:
    """Attention over the keys that the pattern names on all ranks."""
    if isinstance(mixer, AdaptiveSpanAttention):
        mixer.pattern = mixer.reached()
    if given.context is not None:
        return _crossing(mixer, x, given, world)
    q, k, v = heads(mixer, x, world)
    pattern, segments = pattern_of(mixer, world.length), given.marks.get("segments")
    out, _ = attend(
        *(q, k, v, pattern, world),
        valid=given.valid,
        segments=segments,
        bias=bias_of(mixer),
        dropout=mixer.dropout,
    )
    return mixer.project.out(out)


def _crossing(mixer: Any, x: Tensor, given: Given, world: World) -> Tensor:
    """A context is read in full, wherever it is."""
    assert given.context is not None
    q, k, v = mixer.project.q(x), mixer.project.k(given.context), mixer.project.v(given.context)
    out, _ = attend(
        *(q, k, v, Full(), world),
        keys=given.source,
        valid=given.context_valid,
        dropout=mixer.dropout,
    )
    return mixer.project.out(out)


def _axial_bill(mixer: AxialAttention, shards: Shards, batch: int, itemsize: int) -> Bill:
    row, column = (_bill(axis, shards, batch, itemsize) for axis in mixer.axes)
    return row + column


@parallel(AxialAttention, bill=_axial_bill, contiguous=False)
def mix_axial(mixer: AxialAttention, x: Tensor, given: Given, world: World) -> Tensor:
    """The sum over the axes: a row reads its neighbours, a column reads every rank."""
    row, column = (mix(axis, x, given, world) for axis in mixer.axes)
    return row + column


def swin_pattern(mixer: SwinAttention) -> Pattern:
    """Swin's windows as a pattern."""
    config = mixer.config
    grid = config.grid(mixer.frame.layer, config.size)
    if config.width is None:
        return OffsetBlock(config.size, grid.shift[1])
    if config.width <= config.size:  # rows fit one window, so windows are bands
        return OffsetBlock(config.size * config.width, grid.shift[0] * config.width)
    return ShiftedWindow(config.width, config.size, grid.shift[0])


def swin_bias(mixer: SwinAttention) -> Bias:
    """Swin's learned bias as a function of places; hidden pairs get any number."""
    table, width = mixer.table, mixer.config.width
    rows, columns = table.shape[1] // 2, table.shape[2] // 2

    def at(head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        down = i * 0 if width is None else i // width - j // width
        right = i - j if width is None else i % width - j % width
        down, right = down + rows, right + columns
        return table[head, down.clamp(0, 2 * rows), right.clamp(0, 2 * columns)]

    return at
