"""Which position each index of a tensor axis has: in natural order, selected or in tiles."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from weft.errors import WeftError
from weft.patterns.region import Ints, Rectangle, Region


@dataclass(frozen=True)
class Order:
    """Positions start, start + 1, ...: the natural order."""

    count: int
    start: int = 0

    @property
    def hierarchical(self) -> bool:
        """Whether neighbouring blocks join to regions of the same kind."""
        return True

    def positions(self) -> Ints:
        """The position at each index."""
        return np.arange(self.start, self.start + self.count)

    def region(self, block: Ints, size: int) -> Region:
        """The positions of these blocks of `size` indices."""
        first = block * size
        last = np.minimum(first + size, self.count) - 1
        return Region(first + self.start, last + self.start)


@dataclass(frozen=True)
class Selected(Order):
    """Some positions, ascending; a block answers for the interval it lies in (sound, not tight)."""

    chosen: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64), compare=False)
    digest: str = ""  # of the positions, which arrays do not compare by

    def positions(self) -> Ints:
        return self.chosen

    def region(self, block: Ints, size: int) -> Region:
        first = block * size
        last = np.minimum(first + size, self.count) - 1
        return Region(self.chosen[first], self.chosen[last])


def select(positions: Ints) -> Order:
    """The order that takes these ascending positions; natural where they are consecutive."""
    positions = np.asarray(positions, dtype=np.int64)
    count = len(positions)
    if count and positions[-1] - positions[0] + 1 == count:
        return Order(count, int(positions[0]))
    return Selected(count, 0, positions, hashlib.sha256(positions.tobytes()).hexdigest())


@dataclass(frozen=True)
class Tiles(Order):
    """A picture cut into tiles of tile_height × tile_width pixels, one after another."""

    width: int = 1
    tile_height: int = 8
    tile_width: int = 16

    def __post_init__(self) -> None:
        height = self.count // self.width
        if self.count % self.width or height % self.tile_height or self.width % self.tile_width:
            raise WeftError(
                f"tiles of {self.tile_height}×{self.tile_width} have to fill the picture of "
                f"{height}×{self.width}; use another tile or the natural order"
            )

    @property
    def hierarchical(self) -> bool:
        return False

    def positions(self) -> Ints:
        height = self.count // self.width
        shape = (height // self.tile_height, self.tile_height)
        raster = np.arange(self.count).reshape(*shape, self.width // self.tile_width, -1)
        return raster.transpose(0, 2, 1, 3).ravel()

    def region(self, block: Ints, size: int) -> Region:
        if size != self.tile_height * self.tile_width:
            raise WeftError(
                f"a block is one tile of {self.tile_height}×{self.tile_width}; got block={size}"
            )
        across = self.width // self.tile_width
        y0, x0 = block // across * self.tile_height, block % across * self.tile_width
        y1, x1 = y0 + self.tile_height - 1, x0 + self.tile_width - 1
        there = np.full(np.shape(block), True)
        return Region(y0 * self.width + x0, y1 * self.width + x1, Rectangle(y0, y1, x0, x1, there))
