"""Queries, keys and values of the own tokens, at their positions in the whole sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from weft.mixers.base import AttentionMixer
from weft.patterns.region import Ints
from weft.scale.context.bill import Bill, moved, nothing
from weft.scale.context.shards import Shards
from weft.scale.context.world import World, halo, outside


def heads(mixer: AttentionMixer, x: Tensor, world: World) -> tuple[Tensor, Tensor, Tensor]:
    """x (b, n, c) -> q (b, h, n, d), k and v (b, g, n, d), positions applied.

    Projections that read neighbours see those of other ranks.
    """
    if mixer.frame.projection.neighbours:
        world.need_contiguous(mixer.frame.projection.name)
        wide, lead = world.near(x, *margins(mixer))
        q, k, v = (y[:, :, lead : lead + world.count] for y in mixer.project.qkv(wide))
    else:
        q, k, v = mixer.project.qkv(x)
    index = world.positions.to(x.device)
    return mixer.positions.rotate(q, index), mixer.positions.rotate(k, index), v


def margins(mixer: AttentionMixer) -> tuple[int, int]:
    """Tokens before and after its own that the projection of a token reads."""
    around: Any = getattr(mixer.project, "around", (0, 0))
    return around


def heads_bill(mixer: AttentionMixer, shards: Shards, batch: int, itemsize: int) -> Bill:
    """What projections exchange: tokens at the borders, where they read neighbours."""
    if not mixer.frame.projection.neighbours:
        return nothing(shards.ranks)
    return near_bill(shards, *margins(mixer), batch * mixer.frame.dim, itemsize)


def near_bill(shards: Shards, before: int, after: int, numbers: int, itemsize: int) -> Bill:
    """Halos of so many tokens, of so many numbers each."""
    return around_bill(shards, halo(shards, before, after), numbers, itemsize)


def around_bill(
    shards: Shards,
    ranges: list[tuple[int, int]],
    numbers: int,
    itemsize: int,
    *,
    learned: bool = True,
) -> Bill:
    """The tokens of these ranges that other ranks hold."""
    needs = [outside(shards, rank, *each) for rank, each in enumerate(ranges)]
    return moved(counts_of(shards, needs), numbers, itemsize, learned=learned)


def counts_of(shards: Shards, needs: list[Ints]) -> Ints:
    """Positions that each rank needs -> how many travel, (from, to)."""
    columns = [np.bincount(shards.owners(keys), minlength=shards.ranks) for keys in needs]
    return np.stack(columns, axis=1)
