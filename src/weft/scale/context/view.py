"""What a pattern costs over ranks, as facts and as a picture: before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.files import replacing
from weft.patterns import Pattern, picture
from weft.patterns.region import Ints
from weft.scale.context.bill import Bill, attention_bill
from weft.scale.context.shards import Balance, KeyPlan, Shards, reading, spans

_PIXELS = 1024
_TINT = "#e4572e"


@dataclass(frozen=True)
class RankView:
    """One rank under a pattern, over all heads."""

    rank: int
    held: tuple[tuple[int, int], ...]  # first and last position of each run
    fetched: Ints  # positions that some head reads on other ranks
    sources: tuple[int, ...]  # the ranks that hold them
    pairs: float  # its share of all visible pairs
    forward: int  # bytes that it sends
    backward: int


@dataclass(frozen=True)
class PatternView:
    """A pattern over ranks: each of them, and how keys travel."""

    shards: Shards
    ranks: tuple[RankView, ...]
    turns: bool  # whether some head's keys come rank by rank
    wide: int  # queries that go round instead of their keys

    @property
    def total(self) -> int:
        """Bytes that all ranks send, forward and backward."""
        return sum(each.forward + each.backward for each in self.ranks)


def view(
    pattern: Pattern,
    length: int,
    ranks: int,
    *,
    heads: int = 8,
    kv_heads: int | None = None,
    head_dim: int = 64,
    batch: int = 1,
    itemsize: int = 2,
    balance: Balance = "none",
) -> PatternView:
    """What each rank reads of the others, and the bytes it sends in one layer of attention."""
    shards = Shards(length, ranks, balance)
    kinds = picture.by_pattern(pattern, heads)
    plans = [reading(kind, shards) for kind, _ in kinds]
    sizes: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads or heads, "width": head_dim}
    bill = attention_bill(pattern, shards, **sizes, batch=batch, itemsize=itemsize)
    pairs = sum((pairs_of(kind, shards) * len(own) for kind, own in kinds), np.zeros(ranks))
    return PatternView(
        shards,
        tuple(_rank(rank, shards, plans, pairs / pairs.sum(), bill) for rank in range(ranks)),
        any(plan.turns for plan in plans),
        sum(len(plan.wide) for plan in plans),
    )


def _rank(rank: int, shards: Shards, plans: list[KeyPlan], pairs: Any, bill: Bill) -> RankView:
    fetched = reduce(np.union1d, [plan.needs[rank] for plan in plans]).astype(np.int64)
    return RankView(
        rank,
        tuple((start, end - 1) for start, end in shards.pieces(rank)),
        fetched,
        tuple(int(r) for r in np.unique(shards.owners(fetched))),
        float(pairs[rank]),
        int(bill.forward[rank]),
        int(bill.backward[rank]),
    )


def pairs_of(pattern: Pattern, shards: Shards) -> Any:
    """Visible pairs of each rank, from the picture: exact where that is."""
    shares = picture.density(pattern, shards.length, _PIXELS)
    cell = -(-shards.length // len(shares))
    rows = shares @ np.diff(np.append(np.arange(0, shards.length, cell), shards.length))
    each = np.repeat(rows, cell)[: shards.length]  # visible keys of each query
    return np.array([each[shards.positions(rank)].sum() for rank in range(shards.ranks)])


def runs_of(positions: Ints, most: int = 3) -> str:
    """Positions as text: up to so many runs, or how many there are."""
    runs = spans(positions)
    if len(runs) > most:
        return f"{len(positions):,} in {len(runs):,} runs, {positions[0]:,} to {positions[-1]:,}"
    return ", ".join(f"{a:,}–{b:,}" if b > a else f"{a:,}" for a, b in runs)


def save(pattern: Pattern, found: PatternView, path: str | Path, *, heads: int = 8) -> None:
    """The picture of the pattern, with the borders of the shards and what each rank fetches."""
    path, shards = Path(path), found.shards
    if path.suffix.lower() not in (".png", ".svg"):
        raise WeftError(f"a picture is .png or .svg; got {str(path)!r}")
    figure = picture.draw(pattern, shards.length, heads=heads)
    kinds = picture.by_pattern(pattern, heads)
    for axes, (kind, _) in zip(figure.axes, kinds, strict=False):
        _overlay(axes, shards, reading(kind, shards))
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:].lower())


def _overlay(axes: Any, shards: Shards, plan: KeyPlan) -> None:
    """Lines between shards; tinted where a rank reads keys of others; a mark at wide rows."""
    from matplotlib.patches import Rectangle

    for edge in shards.edges[1:-1]:
        axes.axhline(edge, color="#444444", linewidth=0.6)
        axes.axvline(edge, color="#444444", linewidth=0.6, linestyle=":")
    least = shards.length / _PIXELS  # a run of one key is a pixel wide at least
    for rank in range(shards.ranks):
        for start, end in shards.pieces(rank):
            for a, b in _joined(plan.needs[rank], shards.length):
                box = Rectangle((a, start), max(b - a + 1, least), end - start)
                box.set(facecolor=_TINT, alpha=0.28, linewidth=0)
                axes.add_patch(box)
    for a, b in _joined(plan.wide, shards.length):
        axes.plot([shards.length] * 2, [a, b + 1], color=_TINT, linewidth=3)
    axes.set_title(
        f"{axes.get_title(loc='left')}, {shards.ranks} ranks: fetched keys tinted",
        size=10,
        loc="left",
    )


def _joined(positions: Ints, length: int) -> list[tuple[int, int]]:
    """Runs of positions, those that a picture cannot tell apart as one."""
    if not len(positions):
        return []
    cell = max(1, length // _PIXELS)
    return [(a * cell, b * cell + cell - 1) for a, b in spans(np.unique(positions // cell))]
