"""The texts of a table as rows of tokens (`models/usage/texts.py`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.arena.data.examples import TokenRows
from weft.arena.tasks.display import as_text
from weft.generate.text import load_tokenizer
from weft.models.usage.texts import Spans, encode, vocabulary_of

BYTES = "bytes"


def tokenised(texts: Sequence[str], tokens: str, spans: Sequence[Spans] | None = None) -> TokenRows:
    """One row of ids for each text; tokens that touch its `spans` of characters are global."""
    rows, marks = encode(texts, None if tokens == BYTES else load_tokenizer(tokens), spans)
    return TokenRows.of(rows, marks=None if marks is None else {"is_global": marks})


def vocabulary(tokens: str) -> int:
    """How many ids there are."""
    if tokens == BYTES:
        return 256
    return vocabulary_of(load_tokenizer(tokens))


def readable(row: np.ndarray, tokens: str) -> str:
    """A row of ids as text."""
    return as_text(row) if tokens == BYTES else load_tokenizer(tokens).decode(row.tolist())
