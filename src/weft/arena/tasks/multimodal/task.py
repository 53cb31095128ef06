"""Rows of several kinds as a task: a table whose columns hold sounds, pictures, texts and numbers.

    multimodal(data='calls.csv', sounds=('recording',), pictures=('photo',), numbers=('weight',),
               label='species')

Sounds and pictures are paths relative to the table. An empty cell lacks: the model reads the other
columns of the row. Splits are made: each class has its share of each, and equal rows stay together;
or a column of the table says train, valid or test. Numbers are standardised by the training rows.
The trunk is `multimodal_perceiver`, and [[model.trunk.encoders]] says how each column is encoded.
All rows are held in memory: 4 bytes for each sample, colour value, letter and number.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from weft.arena.tasks import readers
from weft.arena.tasks.base import SPLITS, TASKS, Split, majority
from weft.arena.tasks.multimodal.examples import MultimodalExamples
from weft.arena.tasks.table.listed import Listing, Shares, check_shares, listed_rows, listing
from weft.config import write
from weft.errors import WeftError
from weft.models.usage.multimodal import MultimodalInput, number_of
from weft.pictures.files import read_picture
from weft.sound.inputs import SoundInput


class Gathered(NamedTuple):
    """All rows of a table, in its order."""

    values: np.ndarray  # (n, total) float32
    listing: Listing
    reading: MultimodalInput


@TASKS.register("multimodal")
@dataclass(frozen=True, kw_only=True)
class Multimodal:
    """Classify rows of sounds, pictures, texts and numbers."""

    data: str = ""  # the table
    sounds: tuple[str, ...] = ()  # its columns of paths to sounds
    pictures: tuple[str, ...] = ()  # its columns of paths to pictures, all of one size
    texts: tuple[str, ...] = ()  # its columns of texts
    numbers: tuple[str, ...] = ()  # its columns of numbers
    label: str = "label"  # its column of classes
    split: str | None = None  # its column that says train, valid or test
    samples: int = 8_000  # of each sound that are read, the first ones
    rate: int = 8_000  # samples a second
    resample: bool = False  # convert sounds at another rate, which are refused otherwise
    mix: bool = False  # average the channels of stereo files, which are refused otherwise
    letters: int = 256  # bytes of each text that are read, the first ones
    valid_share: float = 0.1  # where splits are made
    test_share: float = 0.2
    seed: int = 0

    kind: ClassVar = "classify"
    metric: ClassVar = "accuracy"
    vocab: ClassVar = 0

    def __post_init__(self) -> None:
        check_shares(self)
        if self.data:
            self._asked()

    @property
    def gathered(self) -> Gathered:
        """All rows; read again only if the table has changed."""
        if not self.data:
            raise WeftError(
                "rows are read from your table: multimodal(data='calls.csv', sounds=('file',))"
            )
        if not Path(self.data).is_file():
            raise WeftError(f"there is no file {self.data!r}; give a table")
        stamp = tuple(readers.stamp(Path(self.data)))
        shares = Shares(self.test_share, self.valid_share, self.seed)
        return _gathered(stamp, self._asked(), self.label, self.split, shares)

    @property
    def inputs(self) -> dict[str, Any]:
        """The trunk's settings."""
        return {"modalities": self.gathered.reading.modalities}

    @property
    def reading_table(self) -> dict[str, Any]:
        """How a row is read, for the model's record, which `weft predict` repeats."""
        return write(self.gathered.reading)

    @property
    def length(self) -> int:
        """Values of a row."""
        return self.gathered.values.shape[1]

    @property
    def classes(self) -> int:
        """Distinct labels."""
        return len(self.gathered.listing.names)

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes as the table names them."""
        return self.gathered.listing.names

    @property
    def source(self) -> str:
        """The table, its columns, and a digest by which a changed row is noticed."""
        found = self.gathered
        how = f"split by {self.split}" if self.split else f"splits made, seed {self.seed}"
        return (
            f"{Path(self.data).name} (digest {found.listing.digest}): {len(found.values):,} rows "
            f"of {', '.join(found.reading.columns)}, {how}"
        )

    def load(self, split: Split) -> MultimodalExamples:
        """One split, always the same for the same files and settings."""
        found = self.gathered
        index = np.flatnonzero(found.listing.splits == SPLITS.index(split))
        return MultimodalExamples(found.values[index], found.listing.labels[index])

    def baselines(self) -> dict[str, float]:
        """The most frequent class."""
        train: Any = self.load("train")
        test: Any = self.load("test")
        return {"majority class": majority(train, test)}

    def show(self, row: np.ndarray) -> str:
        """What is there of each modality."""
        parts, start, values = [], 0, np.asarray(row, dtype=np.float64).reshape(-1)
        for each in self.gathered.reading.modalities:
            own = values[start : start + each.size]
            start += each.size
            known = own[~np.isnan(own)]
            if not len(known):
                parts.append(f"{each.name}: lacks")
            elif each.vocab is not None:
                text = known.astype(np.uint8).tobytes().decode("utf-8", "replace")
                parts.append(f"{each.name}: {text}")
            elif each.size <= 16:
                parts.append(f"{each.name}: {' '.join(f'{value:.2f}' for value in own)}")
            else:
                parts.append(f"{each.name}: {len(known):,} values")
        return "\n".join(parts)

    def _asked(self) -> MultimodalInput:
        """What the settings say, before the table is read."""
        reading = SoundInput(rate=self.rate, resample=self.resample, mix=self.mix)
        return MultimodalInput(
            sounds=self.sounds,
            pictures=self.pictures,
            texts=self.texts,
            numbers=self.numbers,
            samples=self.samples,
            reading=reading,
            letters=self.letters,
        )


@lru_cache(maxsize=4)
def _gathered(
    stamp: tuple[Any, ...], asked: MultimodalInput, label: str, split: str | None, shares: Shares
) -> Gathered:
    path = Path(stamp[0])
    optional = [*asked.columns, *([split] if split else [])]
    rows = list(listed_rows(path, [label], optional))
    reading = _sized(asked, rows, path.parent)
    found = np.empty((len(rows), sum(each.size for each in reading.modalities)), np.float32)
    raw = np.empty((len(rows), len(asked.numbers)))
    for place, (where, row) in enumerate(rows):
        try:
            found[place] = reading.row(row, path.parent)[:, 0]
            raw[place] = [number_of(name, row[name]) for name in asked.numbers]
        except WeftError as cause:
            raise WeftError(f"{where}: {cause}") from cause
    labels = [row[label] for _, row in rows]
    splits = [row[split] for _, row in rows] if split else None
    places = [where for where, _ in rows]
    contents = [each.tobytes() for each in found]
    listed = listing(contents, labels, splits, places, shares, "rows")
    if asked.numbers:
        reading = _standardised(reading, raw[listed.splits == SPLITS.index("train")])
        means, deviations = np.array(reading.means), np.array(reading.deviations)
        found[:, -len(asked.numbers) :] = (raw - means) / deviations
    return Gathered(found, listed, reading)


def _sized(
    asked: MultimodalInput, rows: list[tuple[str, dict[str, str]]], folder: Path
) -> MultimodalInput:
    """With the size of the first picture."""
    for where, row in rows:
        for name in asked.pictures:
            if row[name]:
                try:
                    height, width = read_picture(folder / row[name]).shape[:2]
                except WeftError as cause:
                    raise WeftError(f"{where}: {name}: {cause}") from cause
                return dataclasses.replace(asked, height=height, width=width)
    if asked.pictures:
        raise WeftError(f"no row has a picture in {', '.join(asked.pictures)}; leave them out")
    return asked


def _standardised(reading: MultimodalInput, train: np.ndarray) -> MultimodalInput:
    """With the means and deviations of training numbers (rows, columns)."""
    empty = np.isnan(train).all(0)
    if empty.any():
        name = reading.numbers[int(empty.argmax())]
        raise WeftError(f"no training row has a number in {name!r}; leave the column out")
    means, deviations = np.nanmean(train, 0), np.nanstd(train, 0)
    deviations = np.where(deviations > 0, deviations, 1.0)
    return dataclasses.replace(
        reading, means=tuple(means.tolist()), deviations=tuple(deviations.tolist())
    )
