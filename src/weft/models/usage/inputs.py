"""How what a user gives becomes a model's inputs, where it is not text: DNA, and files of sounds.

The record of a model says it as a spec, `bases(k=3, step=1)` or `sound(rate=8000, form='samples')`,
whose settings are those of `Kmers` and `SoundInput`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.config import read
from weft.dna.bases import Kmers, bases
from weft.errors import WeftError
from weft.sound.inputs import SoundInput
from weft.spec import Call, parse

KINDS: dict[str, Any] = {"bases": Kmers, "sound": SoundInput}


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


def rows_of(given: Sequence[str], reads: Kmers | SoundInput) -> list[np.ndarray]:
    """Sequences of letters as ids (n,), or paths as samples (n, 1) or ids (n,)."""
    if isinstance(reads, SoundInput):
        return [reads.coded(reads.read(Path(path))) for path in given]
    found = []
    for place, letters in enumerate(given, start=1):
        ids = reads.tokens(bases(letters.strip(), f"sequence {place:,}"))
        found.append(ids)
    return found
