"""Image: what does a picture show, read as a row of 1,024 grey pixels?

CIFAR-10, 32 × 32, ten classes: 45,000 to train, 5,000 to validate, 10,000 to test. A pixel's grey
value is its token: 0 to 255. Colours become grey as TensorFlow does it, in float32:

    grey = ⌊255.5 · (0.2989 R + 0.587 G + 0.114 B) / 255⌋

Papers: Krizhevsky 2009, https://www.cs.toronto.edu/~kriz/cifar.html; Tay et al. 2021, Long Range
Arena, https://arxiv.org/abs/2011.04006, section 2.2.4
Differs from the latter: black pixels are pixels (there, token 0 is masked as padding), and a hash
chooses the validation pictures (`readers.py`); there they are the last tenth of a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from zipfile import BadZipFile

import numpy as np

from weft.arena.data.examples import Examples, TokenRows
from weft.arena.tasks import readers
from weft.arena.tasks.base import TASKS, Split, majority
from weft.arena.tasks.display import as_picture
from weft.arena.tasks.from_files import FromFiles, of_split
from weft.errors import WeftError
from weft.pictures.coding import grey

SIZE = 32
EXPECTED = (
    "data_batch_1.bin to data_batch_5.bin and test_batch.bin, CIFAR-10's binary version "
    "(https://www.cs.toronto.edu/~kriz/cifar.html; the Python version is pickles, which are never "
    "loaded), or train.npz and test.npz with x (n, 32, 32) uint8 and y (n,)"
)
_FILES = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}


@TASKS.register("image")
@dataclass(frozen=True, kw_only=True)
class Image(FromFiles):
    """Classify small grey pictures into ten classes, pixel by pixel."""

    valid: int = 5_000  # training pictures that are held out for validation
    seed: int = 0  # which ones
    folder: str = ""  # default: $WEFT_DATA/image

    kind: ClassVar = "classify"
    metric: ClassVar = "accuracy"
    classes: ClassVar = 10
    vocab: ClassVar = 256
    length: ClassVar = SIZE * SIZE
    expected: ClassVar = EXPECTED

    @property
    def source(self) -> str:
        """Which data this is, in words."""
        folder = self._folder()
        if _official(folder):
            return f"CIFAR-10 in grey (binary version), {self.valid:,} of training held out by hash"
        return f"pictures, npz files of the folder {folder.name!r}, {self.valid:,} held out by hash"

    def load(self, split: Split) -> Examples:
        """Pictures and what they show, in the order of a hash."""
        pictures, labels = _read(self._folder(), "test" if split == "test" else "train")
        contents = [picture.tobytes() for picture in pictures]
        chosen = of_split(contents, split, self.valid, self.seed)
        rows = TokenRows(pictures[chosen].ravel(), np.arange(len(chosen) + 1) * self.length)
        return Examples(rows, self.length, labels=labels[chosen])

    def baselines(self) -> dict[str, float]:
        """The most frequent class."""
        return {"majority class": majority(self.load("train"), self.load("test"))}

    def show(self, row: np.ndarray) -> str:
        """The picture in characters."""
        return as_picture(row, SIZE)


def _official(folder: Path) -> Path | None:
    for place in (folder, folder / "cifar-10-batches-bin"):
        if (place / "test_batch.bin").is_file():
            return place
    return None


def _read(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Pictures uint8 (n, 32, 32) and labels int64 (n,)."""
    if official := _official(folder):
        parts = [_batch(official / file) for file in _FILES[name]]
        pictures, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
        return pictures, labels.astype(np.int64)
    path = folder / f"{name}.npz"
    if not path.is_file():
        raise readers.unexpected("image", folder, EXPECTED)
    try:
        with np.load(path, allow_pickle=False) as file:
            pictures, labels = file["x"], file["y"]
    except (OSError, ValueError, KeyError, BadZipFile) as cause:
        raise WeftError(f"{path} is not an npz file with x and y: {cause}") from cause
    _check(path, pictures, labels)
    return pictures, labels.astype(np.int64)


def _batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """One file of the binary version: records of a label and three planes of pixels."""
    if not path.is_file():
        raise WeftError(f"{path} is missing; the folder holds {EXPECTED}")
    data = np.fromfile(path, dtype=np.uint8)
    record = 1 + 3 * SIZE * SIZE
    if not len(data) or len(data) % record:
        raise WeftError(f"{path} holds whole records of {record} bytes; got {len(data):,} bytes")
    records = data.reshape(-1, record)
    planes = records[:, 1:].reshape(-1, 3, SIZE, SIZE)
    pictures = np.stack([grey(plane.transpose(1, 2, 0)) for plane in planes])
    _check(path, pictures, records[:, 0])
    return pictures, records[:, 0]


def _check(path: Path, pictures: np.ndarray, labels: np.ndarray) -> None:
    shape = (len(labels), SIZE, SIZE)
    if pictures.dtype != np.uint8 or pictures.shape != shape or labels.ndim != 1:
        raise WeftError(
            f"{path}: x is uint8 (n, {SIZE}, {SIZE}) and y (n,); got {pictures.dtype} "
            f"{pictures.shape} and {labels.shape}"
        )
    if not len(labels) or labels.dtype.kind not in "iu" or not np.isin(labels, range(10)).all():
        raise WeftError(f"{path}: labels are whole numbers 0 to 9, one or more")
