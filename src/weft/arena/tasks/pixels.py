"""Pixels: small pictures in the colours of a palette, to be continued, filled in or classified.

CIFAR-10 in colour, reduced to `size` × `size` by averaging, each pixel the number of one of
`colours` colours (`weft.arena.data.palette`), row after row. The palette is made from the training
pictures. Its own objective is to classify; objective = "pixel_lm" learns from the pictures alone,
and a [[phase]] of it before one of classification is what iGPT does.

Papers: Krizhevsky 2009, https://www.cs.toronto.edu/~kriz/cifar.html; Chen et al. 2020, Generative
Pretraining from Pixels, https://openai.com/index/image-gpt/
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from zipfile import BadZipFile

import numpy as np

from weft.arena.data.cache import Arrays, cached
from weft.arena.data.examples import Examples, TokenRows
from weft.arena.data.palette import nearest, palette
from weft.arena.tasks import readers
from weft.arena.tasks.base import TASKS, Split, majority
from weft.arena.tasks.display import as_picture
from weft.arena.tasks.from_files import FromFiles
from weft.errors import WeftError
from weft.pictures.coding import PictureCoding

SIDE = 32
VERSION = 1
EXPECTED = (
    "data_batch_1.bin to data_batch_5.bin and test_batch.bin, CIFAR-10's binary version "
    "(https://www.cs.toronto.edu/~kriz/cifar.html), or train.npz and test.npz with x "
    "(n, 32, 32, 3) uint8 and y (n,)"
)
_FILES = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}


@TASKS.register("pixels")
@dataclass(frozen=True, kw_only=True)
class Pixels(FromFiles):
    """Small pictures in a palette of colours, pixel by pixel."""

    colours: int = 512
    size: int = 32  # pixels on a side: a divisor of 32
    valid: int = 5_000  # training pictures that are held out for validation
    seed: int = 0  # which ones, and of the palette
    folder: str = ""  # default: $WEFT_DATA/pixels

    kind: ClassVar = "classify"
    metric: ClassVar = "accuracy"
    classes: ClassVar = 10
    expected: ClassVar = EXPECTED

    def __post_init__(self) -> None:
        if self.size < 1 or SIDE % self.size or self.colours < 2:
            raise WeftError(
                f"size divides {SIDE} and there are 2 colours or more; "
                f"got size={self.size}, colours={self.colours}"
            )

    @property
    def vocab(self) -> int:
        """The colours."""
        return self.colours

    @property
    def length(self) -> int:
        """Pixels of a picture."""
        return self.size * self.size

    @property
    def source(self) -> str:
        """Which data this is, in words."""
        return (
            f"pictures of the folder {self._folder().name!r}, {self.size}×{self.size} in "
            f"{self.colours} colours, {self.valid:,} held out by hash"
        )

    def load(self, split: Split) -> Examples:
        """Pictures and what they show, in the order of a hash."""
        found = self._made()
        tokens, labels = found[f"{split}_tokens"], found[f"{split}_labels"]
        rows = TokenRows(tokens.reshape(-1), np.arange(len(labels) + 1) * self.length)
        return Examples(rows, self.length, labels=labels)

    def palette(self) -> np.ndarray:
        """The colours (colours, 3), red, green and blue from 0 to 255."""
        return self._made()["palette"]

    @property
    def coding_table(self) -> dict[str, Any]:
        """How pictures become tokens, for the model's record."""
        size = {"height": self.size, "width": self.size}
        return PictureCoding(form="palette", **size, palette=self.palette()).table()

    def baselines(self) -> dict[str, float]:
        """The most frequent class."""
        train, test = self.load("train"), self.load("test")
        return {"majority class": majority(train, test)}

    def show(self, row: np.ndarray) -> str:
        """The picture in characters, dark to bright as the palette is."""
        return as_picture(
            (row.astype(np.int64) * 255 // (self.colours - 1)).astype(np.uint8), self.size
        )

    def _made(self) -> Arrays:
        folder = self._folder()
        files = {name: _files(folder, name) for name in ("train", "test")}
        settings = {
            "version": VERSION,
            "files": [readers.stamp(path) for paths in files.values() for path in paths],
            **{name: getattr(self, name) for name in ("colours", "size", "valid", "seed")},
        }
        return cached("pixels", settings, lambda _: self._build(files))

    def _build(self, files: dict[str, list[Path]]) -> Arrays:
        pictures, labels = _read(files["train"])
        stay, held = readers.held_out([p.tobytes() for p in pictures], self.valid, self.seed)
        small = reduced(pictures, self.size)
        colours = palette(small[stay].reshape(-1, 3), self.colours, self.seed)
        parts = {"train": (small[stay], labels[stay]), "valid": (small[held], labels[held])}
        pictures, labels = _read(files["test"])
        order = readers.shuffled([p.tobytes() for p in pictures], self.seed)
        parts["test"] = (reduced(pictures[order], self.size), labels[order])
        found: Arrays = {"palette": colours}
        for split, (some, own) in parts.items():
            found[f"{split}_tokens"] = nearest(some, colours).reshape(len(own), self.length)
            found[f"{split}_labels"] = own
        return found


def reduced(pictures: np.ndarray, size: int) -> np.ndarray:
    """(n, 32, 32, 3) uint8 -> (n, size, size, 3) uint8: the rounded mean of each square."""
    step = pictures.shape[1] // size
    squares = pictures.reshape(len(pictures), size, step, size, step, 3)
    sums = squares.sum((2, 4), dtype=np.uint32)
    return ((sums + step * step // 2) // (step * step)).astype(np.uint8)


def _files(folder: Path, name: str) -> list[Path]:
    for place in (folder, folder / "cifar-10-batches-bin"):
        if (place / "test_batch.bin").is_file():
            return [place / file for file in _FILES[name]]
    if not (folder / f"{name}.npz").is_file():
        raise readers.unexpected("pixels", folder, EXPECTED)
    return [folder / f"{name}.npz"]


def _read(paths: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Pictures uint8 (n, 32, 32, 3) and labels int64 (n,)."""
    pictures, labels = zip(*(_one(path) for path in paths), strict=True)
    return np.concatenate(pictures), np.concatenate(labels)


def _one(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                pictures, labels = file["x"], file["y"]
        else:  # records of a label and three planes of pixels
            records = np.fromfile(path, dtype=np.uint8).reshape(-1, 1 + 3 * SIDE * SIDE)
            planes = records[:, 1:].reshape(-1, 3, SIDE, SIDE)
            pictures, labels = planes.transpose(0, 2, 3, 1), records[:, 0]
    except (OSError, ValueError, KeyError, BadZipFile) as cause:
        raise WeftError(f"{path} cannot be read ({cause}). The folder holds {EXPECTED}") from cause
    shape = (len(labels), SIDE, SIDE, 3)
    known = labels.ndim == 1 and labels.dtype.kind in "iu" and np.isin(labels, range(10)).all()
    if pictures.dtype != np.uint8 or pictures.shape != shape or not known or not len(labels):
        raise WeftError(
            f"{path}: pictures are uint8 {shape}, labels 0 to 9; got {pictures.dtype} "
            f"{pictures.shape} and {labels.dtype} {labels.shape}"
        )
    return np.ascontiguousarray(pictures), labels.astype(np.int64)
