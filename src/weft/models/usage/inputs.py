"""How what a user gives becomes a model's inputs, where it is not text alone.

DNA is letters, sounds and pictures are files, rows of several kinds are mappings of columns. The
record of a model says which: `tokens` as a spec, `bases(k=3, step=1)` or `sound(rate=8000)`, whose
settings are those of `Kmers` and `SoundInput`; or the tables `pictures` and `modalities`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np

from weft.config import read
from weft.dna.bases import Kmers, bases
from weft.errors import WeftError
from weft.models.usage.multimodal import MultimodalInput
from weft.models.usage.record import Usage
from weft.pictures.coding import PictureCoding, coding_of
from weft.pictures.files import read_pictures
from weft.sound.inputs import SoundInput
from weft.spec import Call, parse

KINDS: dict[str, Any] = {"bases": Kmers, "sound": SoundInput}


class Reads(Protocol):
    """What makes a row of inputs."""

    def row(self, given: Any, folder: Path = Path()) -> np.ndarray:
        """Ids (n,) or values (n, channels), NaN where one lacks; paths are in `folder`."""
        ...


class ReadsBases:
    """Letters."""

    def __init__(self, kmers: Kmers) -> None:
        self.kmers = kmers

    def row(self, given: Any, folder: Path = Path()) -> np.ndarray:
        """Ids (n,)."""
        return self.kmers.tokens(bases(str(given).strip(), "the sequence"))


class ReadsSound:
    """A file of a sound."""

    def __init__(self, reading: SoundInput) -> None:
        self.reading = reading

    def row(self, given: Any, folder: Path = Path()) -> np.ndarray:
        """Samples (n, 1), or ids (n,)."""
        return self.reading.coded(self.reading.read(folder / str(given).strip()))


class ReadsPicture:
    """A file of a picture."""

    def __init__(self, coding: PictureCoding) -> None:
        self.coding = coding

    def row(self, given: Any, folder: Path = Path()) -> np.ndarray:
        """Ids (n,)."""
        size = (self.coding.height, self.coding.width)
        return self.coding.encode(read_pictures([folder / str(given).strip()], size))[0]


def reads_of(usage: Usage) -> Reads | None:
    """What reads the inputs of a model; None where it reads text."""
    if usage.modalities:
        return read(MultimodalInput, usage.modalities, "usage.json: modalities")
    if usage.pictures:
        return ReadsPicture(coding_of(usage.pictures))
    found = input_of(usage.tokens)
    if isinstance(found, Kmers):
        return ReadsBases(found)
    return None if found is None else ReadsSound(found)


def input_of(tokens: str) -> Kmers | SoundInput | None:
    """The config that a record's `tokens` names; None where a model reads text."""
    if "(" not in tokens:
        return None
    found = parse(tokens)
    if not isinstance(found, Call) or found.args or found.name not in KINDS:
        raise WeftError(
            f"usage.json: tokens is one of bytes, tokenizer.json, none, {', '.join(KINDS)}(...); "
            f"got {tokens!r}: this version does not know it"
        )
    return read(KINDS[found.name], found.kwargs, "tokens")
