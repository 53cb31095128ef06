"""How a row of a table with several kinds of columns becomes what a multimodal model reads.

Each column of texts, sounds or pictures is a modality of its own name; all columns of numbers are
one, `numbers`. Texts are their bytes; sounds have unit variance; pixels are from −1 to 1; numbers
are standardised by the training rows. An empty cell lacks; a row has one cell or more.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from weft.config import config
from weft.errors import WeftError
from weft.layers.fronts.modality import Modality
from weft.pictures.files import read_picture
from weft.sound.inputs import SoundInput

NUMBERS = "numbers"


@config
class MultimodalInput:
    """The columns of a row, and how each is read."""

    sounds: tuple[str, ...] = ()  # columns of paths
    pictures: tuple[str, ...] = ()  # columns of paths
    texts: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    samples: int = 8_000  # of a sound that are read, the first ones
    reading: SoundInput = SoundInput()  # frozen
    height: int = 0  # of pictures, all of one size
    width: int = 0
    letters: int = 256  # bytes of a text that are read, the first ones
    means: tuple[float, ...] = ()  # of numbers in training
    deviations: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.columns:
            raise WeftError(
                "name columns of one kind or more: sounds=('recording',), pictures=('photo',), "
                "texts=('note',), numbers=('age', 'weight')"
            )
        names = [*self.columns, NUMBERS] if self.numbers else [*self.columns]
        names = [name for name in names if name not in self.numbers or name == NUMBERS]
        if len(set(self.columns)) < len(self.columns) or len(set(names)) < len(names):
            raise WeftError(
                f"each column is named once, and none but of numbers {NUMBERS!r}; got "
                f"{list(self.columns)}"
            )
        if min(self.samples, self.letters) < 1:
            raise WeftError(
                f"samples and letters are at least 1; got {self.samples} and {self.letters}"
            )
        if self.reading.form != "samples":
            raise WeftError(f"sounds are read as samples; got form={self.reading.form!r}")

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are read."""
        return (*self.sounds, *self.pictures, *self.texts, *self.numbers)

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """What the model reads, in this order."""
        size = (max(1, self.height), max(1, self.width))
        found = [Modality(name=name, shape=(self.samples,)) for name in self.sounds]
        found += [Modality(name=name, shape=size, channels=3) for name in self.pictures]
        found += [Modality(name=name, shape=(self.letters,), vocab=256) for name in self.texts]
        if self.numbers:
            found.append(Modality(name=NUMBERS, shape=(len(self.numbers),)))
        return tuple(found)

    def row(self, given: Any, folder: Path = Path()) -> np.ndarray:
        """Cells by column -> values (total, 1) float32, NaN where one lacks; paths in `folder`."""
        if not isinstance(given, Mapping):
            raise WeftError(f"a row is a mapping of {', '.join(self.columns)}; got {given!r:.60}")
        cells = {}
        for name in self.columns:
            if name not in given:
                raise WeftError(f"there is no {name!r}; there are {', '.join(map(str, given))}")
            cells[name] = "" if given[name] is None else str(given[name]).strip()
        if not any(cells.values()):
            raise WeftError(f"nothing in {', '.join(self.columns)}; leave it out")
        parts = [self._sound(name, cells[name], folder) for name in self.sounds]
        parts += [self._picture(name, cells[name], folder) for name in self.pictures]
        parts += [self._text(cells[name]) for name in self.texts]
        parts.append(self._numbers(cells))
        return np.concatenate(parts)[:, None]

    def _sound(self, name: str, cell: str, folder: Path) -> np.ndarray:
        found = np.full(self.samples, np.nan, dtype=np.float32)
        if cell:
            values = _named(name, lambda: self.reading.coded(self.reading.read(folder / cell)))
            found[: len(values)] = values[: self.samples, 0]
        return found

    def _picture(self, name: str, cell: str, folder: Path) -> np.ndarray:
        if not cell:
            return np.full(self.height * self.width * 3, np.nan, dtype=np.float32)
        picture = _named(name, lambda: read_picture(folder / cell))
        if picture.shape[:2] != (self.height, self.width):
            raise WeftError(
                f"{name}: {cell} is {picture.shape[0]} × {picture.shape[1]} (height × width), and "
                f"{self.height} × {self.width} are read: scale or cut it first"
            )
        return picture.ravel().astype(np.float32) / np.float32(127.5) - np.float32(1.0)

    def _text(self, cell: str) -> np.ndarray:
        found = np.full(self.letters, np.nan, dtype=np.float32)
        letters = np.frombuffer(cell.encode()[: self.letters], dtype=np.uint8)
        found[: len(letters)] = letters
        return found

    def _numbers(self, cells: Mapping[str, str]) -> np.ndarray:
        raw = np.array([number_of(name, cells[name]) for name in self.numbers], dtype=np.float64)
        means = np.array(self.means or [0.0] * len(raw))
        deviations = np.array(self.deviations or [1.0] * len(raw))
        return ((raw - means) / deviations).astype(np.float32)


def number_of(name: str, cell: str) -> float:
    """A cell as a number; NaN where it is empty."""
    try:
        found = float(cell) if cell else np.nan
    except ValueError as cause:
        raise WeftError(f"{name} is a column of numbers; got {cell!r:.60}") from cause
    if cell and not np.isfinite(found):
        raise WeftError(f"{name} holds {cell!r}; repair it, or leave the cell empty: it lacks")
    return found


def _named(name: str, read: Any) -> Any:
    try:
        return read()
    except WeftError as cause:
        raise WeftError(f"{name}: {cause}") from cause
