"""Digits: which of ten digits is spoken?

The Free Spoken Digit Dataset: 3,000 recordings at 8 kHz, ten digits × six speakers × 50 takes. The
usual test is takes 0 to 4 of each speaker and digit, 300 recordings; all speakers are also in
training. Validation is held out of training by a hash.

Source: https://github.com/Jakobovski/free-spoken-digit-dataset (CC BY-SA 4.0)
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar
from zipfile import BadZipFile

import numpy as np

from weft.arena.tasks import readers
from weft.arena.tasks.base import TASKS, Split
from weft.arena.tasks.from_files import FromFiles, of_split
from weft.arena.tasks.sound.base import SoundTask
from weft.arena.tasks.sound.examples import Recordings, joined
from weft.errors import WeftError
from weft.sound.files import check_samples
from weft.sound.inputs import SoundInput

TEST_TAKES = 5  # takes 0 to 4
EXPECTED = (
    "{digit}_{speaker}_{take}.wav, as in the folder recordings of the Free Spoken Digit Dataset, "
    "or train.npz and test.npz with pcm int16 (samples,), offsets (sounds + 1,) and label (sounds,)"
)
_NAME = re.compile(r"([0-9])_([^_]+)_([0-9]+)\.wav")


@TASKS.register("digits")
@dataclass(frozen=True, kw_only=True)
class Digits(FromFiles, SoundTask):
    """Say which digit is spoken, from raw sound."""

    valid: int = 300  # training recordings that are held out for validation
    folder: str = ""  # default: $WEFT_DATA/digits

    classes: ClassVar = 10
    labels: ClassVar = tuple(range(10))
    expected: ClassVar = EXPECTED

    @property
    def source(self) -> str:
        """Which data this is, in words."""
        return (
            f"spoken digits of the folder {self._folder().name!r} at {self.rate:,} Hz, "
            f"{self.valid:,} of training held out by hash"
        )

    def recordings(self, split: Split) -> Recordings:
        """Recordings of a split, in the order of a hash."""
        folder = self._folder()
        part = "test" if split == "test" else "train"
        packed = (folder / "train.npz").is_file()
        files = [folder / f"{part}.npz"] if packed else _takes(folder, part)
        stamps = tuple(tuple(readers.stamp(path)) for path in files)
        found = _read(stamps, dataclasses.replace(self.reading, form="samples"))
        sounds = np.split(found.samples, found.starts[1:-1])
        chosen = of_split([sound.tobytes() for sound in sounds], split, self.valid, self.seed)
        return found.chosen(chosen)


def _takes(folder: Path, part: str) -> list[Path]:
    """The files of training or test."""
    folder = folder / "recordings" if (folder / "recordings").is_dir() else folder
    named = [(_NAME.fullmatch(path.name), path) for path in sorted(folder.glob("*.wav"))]
    for match, path in named:
        if match is None:
            raise WeftError(f"{path} is not named {{digit}}_{{speaker}}_{{take}}.wav, 7_jo_12.wav")
    test = part == "test"
    found = [path for match, path in named if match and (int(match[3]) < TEST_TAKES) == test]
    if not found:
        raise readers.unexpected("digits", folder, EXPECTED)
    return found


@lru_cache(maxsize=4)
def _read(stamps: tuple[tuple, ...], reading: SoundInput) -> Recordings:
    files = [Path(stamp[0]) for stamp in stamps]
    if files[0].suffix == ".npz":
        return _packed(files[0])
    return joined(
        [reading.read(path) for path in files], np.array([int(path.name[0]) for path in files])
    )


def _packed(path: Path) -> Recordings:
    """An npz file of many recordings."""
    if not path.is_file():
        raise WeftError(f"{path} is missing; the folder holds {EXPECTED}")
    try:
        with np.load(path, allow_pickle=False) as file:
            samples, starts, labels = file["pcm"], file["offsets"], file["label"]
    except (OSError, ValueError, KeyError, BadZipFile) as cause:
        raise WeftError(f"{path} is not an npz of pcm, offsets, label: {cause}") from cause
    starts = starts.astype(np.int64)
    fits = len(starts) == len(labels) + 1 and starts[0] == 0 and starts[-1] == len(samples)
    if samples.dtype != np.int16 or not fits or not np.isin(labels, range(10)).all():
        raise WeftError(
            f"{path}: pcm is int16, offsets run from 0 to {len(samples):,} with one more entry "
            f"than label has, and labels are 0 to 9; got {samples.dtype}, {len(starts):,} offsets "
            f"to {starts[-1]:,} and {len(labels):,} labels"
        )
    for row in range(len(labels)):
        check_samples(samples[starts[row] : starts[row + 1]], f"{path}, recording {row:,}")
    return Recordings(samples, starts, labels.astype(np.int64))
