"""Pathfinder: do two discs sit on the ends of one dashed curve? Pixels as tokens.

Images come from weft's own generator (`arena/tasks/pathfinder/images.py`) with the published
parameters, or from a folder as Long Range Arena distributes it. A pixel's grey value 0 to 255 is
its token. An image of a split is always the same, however many are asked for. `pathx` is the task
at 128 × 128.

    <folder>/curv_contour_length_14/imgs/<k>/sample_<i>.png
    <folder>/curv_contour_length_14/metadata/<k>.npy      text: folder, file, number, label ...

Papers: Linsley et al. 2018, https://arxiv.org/abs/1805.08315; Tay et al. 2021, Long Range Arena,
https://arxiv.org/abs/2011.04006, section 2.2.5
Differs from the latter: black pixels are pixels (there, token 0 is masked as padding).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from weft.arena.data.cache import Arrays, cached
from weft.arena.data.examples import Examples, TokenRows
from weft.arena.tasks import readers
from weft.arena.tasks.base import TASKS, Split, best_threshold, majority
from weft.arena.tasks.display import as_picture
from weft.arena.tasks.pathfinder.images import Drawing, draw
from weft.arena.tasks.pathfinder.stream import Drawn, in_tiles, shrunk
from weft.errors import WeftError
from weft.files import read_text

VERSION = 1
EXPECTED = (
    "curv_baseline, curv_contour_length_9 or curv_contour_length_14 with their imgs and metadata, "
    "as in one of the pathfinder folders of Long Range Arena (lra_release)"
)
_FOLDERS = {6: "curv_baseline", 9: "curv_contour_length_9", 14: "curv_contour_length_14"}
_FIRST = {"test": 0, "valid": 1 << 29, "train": 1 << 30}  # numbers of the first images
_SHARES = {"train": (0.0, 0.8), "valid": (0.8, 0.9), "test": (0.9, 1.0)}
_PIECE = 4096  # images drawn at a time


@TASKS.register("pathfinder")
@dataclass(frozen=True, kw_only=True)
class Pathfinder:
    """Tell whether two discs are joined by a dashed curve, pixel by pixel."""

    size: int = 32  # 32, 64, 128 or 256
    dashes: int = 14  # of a long curve: 14 is hard, 9 intermediate, 6 easy
    train: int = 160_000  # 0: no end of them, drawn while training
    valid: int = 20_000
    test: int = 20_000
    seed: int = 0
    folder: str = ""  # read files, split 80/10/10 by position, instead of drawing
    easier: int = 0  # dashes of a third of the images drawn while training; 0: none are easier
    symmetries: bool = False  # images drawn while training are turned and mirrored at random
    tile: tuple[int, int] | None = None  # pixels tile by tile, (height, width); None: row by row
    shrink: int = 1  # images are drawn this many times larger, then averaged down to `size`
    soften: int = 1  # images drawn while training are mixed with their means of soften² pixels

    kind: ClassVar = "classify"
    metric: ClassVar = "accuracy"
    classes: ClassVar = 2
    vocab: ClassVar = 256

    def __post_init__(self) -> None:
        if self.shrink < 1:
            raise WeftError(f"images are averaged down by 1 or more; got shrink={self.shrink}")
        self._drawing(self.dashes)
        if min(self.valid, self.test) < 1 or self.seed < 0 or self.train < 0:
            raise WeftError("each split has at least one image, and a seed is 0 or more")
        if self.soften < 1 or self.size % self.soften:
            raise WeftError(
                f"images of {self.size}×{self.size} pixels are softened in squares that fill them; "
                f"got soften={self.soften}"
            )
        if self.train and (self.easier or self.symmetries or self.soften > 1):
            raise WeftError(
                "easier, symmetries and soften are for images drawn while training: train=0"
            )
        if self.tile is not None:
            in_tiles(np.zeros((1, self.size, self.size), dtype=np.uint8), self.tile)
        if self.folder and self.dashes not in _FOLDERS:
            raise WeftError(f"files exist for {sorted(_FOLDERS)} dashes; got dashes={self.dashes}")

    @property
    def length(self) -> int:
        """Pixels of an image."""
        return self.size**2

    @property
    def source(self) -> str:
        """Which data this is, in words."""
        what = f"Pathfinder {self.size}×{self.size}, {self.dashes} dashes"
        if self.shrink > 1:
            what += f", averaged down from {self.drawn_size}×{self.drawn_size}"
        if not self.train:
            what += ", fresh images for training"
        if self.folder:
            return f"{what}, files of the folder {Path(self.folder).name!r}"
        return f"{what}, own generator, published parameters, seed {self.seed}"

    @property
    def drawn_size(self) -> int:
        """Pixels along one side as drawn."""
        return self.size * self.shrink

    def load(self, split: Split) -> Examples:
        """Images as rows of pixels; class 1 is joined."""
        found = self._filed(split) if self.folder else self._drawn(split)
        images, labels = shrunk(found["images"], self.shrink), found["labels"]
        pixels = in_tiles(images, self.tile).reshape(-1)
        rows = TokenRows(pixels, np.arange(len(images) + 1) * self.length)
        return Examples(rows, self.length, labels=labels)

    def stream(self, batch: int) -> Drawn | None:
        """Batches of fresh images, or None where the training split is a fixed one."""
        if self.train:
            return None
        return Drawn(
            drawing=self._drawing(self.dashes),
            easier=self._drawing(self.easier) if self.easier else None,
            batch_size=batch,
            seed=self.seed,
            tile=self.tile,
            symmetries=self.symmetries,
            shrink=self.shrink,
            soften=self.soften,
            threads=_threads(),
        )

    def baselines(self) -> dict[str, float]:
        """The most frequent class, and the brightness of the image."""
        # Images drawn while training have no end; the validation split represents them.
        train, test = self.load("train" if self.train else "valid"), self.load("test")
        light, test_light = _brightness(train), _brightness(test)
        found = {"majority class": majority(train, test)}
        threshold = best_threshold(light, train.classes)
        found["brightness"] = float(((test_light >= threshold) == test.labels).mean())
        return found

    def show(self, row: np.ndarray) -> str:
        """The image in characters."""
        if self.tile is not None:
            order = in_tiles(np.arange(self.length).reshape(1, self.size, -1), self.tile)[0]
            row = row[order.argsort()]
        return as_picture(row, self.size)

    def _drawing(self, dashes: int) -> Drawing:
        return Drawing.of(size=self.drawn_size, dashes=dashes)

    def _drawn(self, split: Split) -> Arrays:
        count = getattr(self, split)
        settings = {
            "size": self.drawn_size,
            "dashes": self.dashes,
            "seed": self.seed,
            "first": _FIRST[split],
            "count": count,
            "version": VERSION,
        }
        drawing = self._drawing(self.dashes)

        def build(scratch: Path) -> Arrays:
            return {"labels": _draw(drawing, self.seed, _FIRST[split], count, scratch)}

        return cached("pathfinder", settings, build)

    def _filed(self, split: Split) -> Arrays:
        folder = readers.data_folder("pathfinder", self.folder, EXPECTED) / _FOLDERS[self.dashes]
        notes = sorted((folder / "metadata").glob("*.npy"), key=_number)
        if not notes:
            raise readers.unexpected("pathfinder", folder.parent, EXPECTED)
        settings: dict[str, Any] = {
            "files": [readers.stamp(file) for file in notes],
            "size": self.drawn_size,
            "version": VERSION,
        }
        found = cached("pathfinder", settings, lambda _: _read(notes, self.drawn_size))
        begin, end = (round(share * len(found["labels"])) for share in _SHARES[split])
        return {name: array[begin:end] for name, array in found.items()}


@TASKS.register("pathx")
@dataclass(frozen=True, kw_only=True)
class PathX(Pathfinder):
    """Pathfinder at 128 × 128, 16,384 tokens: failed by every model of Long Range Arena."""

    size: int = 128


def _draw(drawing: Drawing, seed: int, first: int, count: int, scratch: Path) -> np.ndarray:
    """Images straight to images.npy; returns the labels."""
    shape = (count, drawing.size, drawing.size)
    images = np.lib.format.open_memmap(scratch / "images.npy", "w+", np.uint8, shape)
    labels = np.empty(count, dtype=np.int64)
    for begin in range(0, count, _PIECE):
        end = min(count, begin + _PIECE)
        images[begin:end], labels[begin:end] = draw(
            drawing, seed, first + begin, end - begin, threads=_threads()
        )
    images.flush()
    return labels


def _threads() -> int:
    """Cores that this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return allowed or 1


def _brightness(examples: Examples) -> np.ndarray:
    """(rows,) sum of all pixels."""
    return np.add.reduceat(examples.rows.tokens, examples.rows.starts[:-1], dtype=np.int64)


def _number(path: Path) -> tuple[int, str]:
    return (int(path.stem) if path.stem.isdigit() else 0, path.stem)


def _read(notes: list[Path], size: int) -> Arrays:
    """The images that the metadata name, without those of empty files."""
    images, labels = [], []
    for note in notes:
        for line, text in enumerate(read_text(note).splitlines(), start=1):
            words = text.split()
            if len(words) < 4:
                raise readers.broken(note, line, f"needs folder, file, number, label; got {text!r}")
            label = readers.class_label(words[3], 2, note, line)
            path = note.parents[1] / words[0] / words[1]
            if not path.is_file():
                raise readers.broken(note, line, f"there is no image {path}")
            if path.stat().st_size:
                images.append(_image(path, size))
                labels.append(label)
    return {"images": np.stack(images), "labels": np.array(labels, dtype=np.int64)}


def _image(path: Path, size: int) -> np.ndarray:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as cause:
        raise WeftError("reading PNG files needs pillow: pip install pillow") from cause
    try:
        with Image.open(path) as file:
            image = np.asarray(file.convert("L"))
    except (OSError, UnidentifiedImageError) as cause:
        raise WeftError(f"{path} is not an image: {cause}") from cause
    if image.shape != (size, size):
        raise WeftError(f"{path} is {image.shape} pixels; size={size} was asked for")
    return image
