"""Pathfinder images drawn while a model trains on them: every batch is new, none is stored.

An image is a function of the task's seed and its number, so a run that resumes sees what it would
have seen. A third of the images may be easier ones (fewer dashes), which keeps alive what was
learned on them; each image may be turned and mirrored, one of the eight symmetries at random; each
may be softened, by a share of its own, towards what it is at a lower resolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from weft.arena.tasks.pathfinder.images import Drawing, draw
from weft.objectives.batch import Batch
from weft.patterns.order import Tiles

FIRST = 1 << 31  # beyond the images of any fixed split


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A source of batches of fresh images."""

    drawing: Drawing
    easier: Drawing | None
    batch_size: int
    seed: int
    tile: tuple[int, int] | None
    symmetries: bool
    shrink: int
    soften: int
    threads: int

    def __str__(self) -> str:
        size = self.drawing.size // self.shrink
        words = [f"fresh images of {size}×{size}", f"{self.drawing.contour_length} dashes"]
        if self.easier is not None:
            words.append(f"a third {self.easier.contour_length}")
        if self.symmetries:
            words.append("turned and mirrored")
        if self.shrink > 1:
            words.append(f"shrunk from {self.drawing.size}×{self.drawing.size}")
        if self.soften > 1:
            words.append(f"softened by squares of {self.soften}×{self.soften}")
        return ", ".join([*words, f"seed {self.seed}", f"in batches of {self.batch_size}"])

    def batch(self, step: int) -> Batch:
        """The images of this step."""
        few = self.batch_size // 3 if self.easier is not None else 0
        parts = [self._draw(self.drawing, step, self.batch_size - few)]
        if self.easier is not None:
            parts.append(self._draw(self.easier, step, few))
        images, labels = (np.concatenate(each) for each in zip(*parts, strict=True))
        rng = np.random.default_rng([self.seed, step])
        if self.symmetries:
            images = turned(images, rng.integers(8, size=len(images)))
        images = shrunk(images, self.shrink)
        if self.soften > 1:
            images = softened(images, self.soften, rng.random(len(images), dtype=np.float32))
        rows = in_tiles(images, self.tile)
        x, y = torch.from_numpy(rows.astype(np.int64)), torch.from_numpy(labels.astype(np.int64))
        return Batch(x=x, y=y)

    def _draw(self, drawing: Drawing, step: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        first = FIRST + step * self.batch_size
        return draw(drawing, self.seed, first, count, threads=self.threads)


def turned(images: np.ndarray, symmetry: np.ndarray) -> np.ndarray:
    """(b, s, s): each image under one of the eight symmetries of the square, (b,) 0 to 7."""
    out = np.where((symmetry & 1)[:, None, None] > 0, images[:, ::-1], images)
    out = np.where((symmetry & 2)[:, None, None] > 0, out[:, :, ::-1], out)
    return np.where((symmetry & 4)[:, None, None] > 0, out.transpose(0, 2, 1), out)


def shrunk(images: np.ndarray, factor: int) -> np.ndarray:
    """(b, s, s) -> (b, s / factor, s / factor): means of squares of pixels, rounded."""
    if factor == 1:
        return images
    small = images.shape[1] // factor
    squares = images.reshape(len(images), small, factor, small, factor)
    return np.rint(squares.mean((2, 4), dtype=np.float32)).astype(images.dtype)


def softened(images: np.ndarray, factor: int, shares: np.ndarray) -> np.ndarray:
    """(b, s, s): mixed with means of squares of factor × factor pixels, by shares (b,) of these."""
    coarse = shrunk(images, factor).repeat(factor, 1).repeat(factor, 2)
    mixed = images + shares[:, None, None] * (coarse.astype(np.float32) - images)
    return np.rint(mixed).astype(images.dtype)


def in_tiles(images: np.ndarray, tile: tuple[int, int] | None) -> np.ndarray:
    """(b, s, s) -> (b, s²): row by row, or tile by tile of (height, width) pixels."""
    rows = images.reshape(len(images), -1)
    return rows if tile is None else rows[:, _order(images.shape[1], *tile)]


@lru_cache(maxsize=8)
def _order(size: int, height: int, width: int) -> np.ndarray:
    return Tiles(size * size, 0, size, height, width).positions()
