"""Texts to tokens: their UTF-8 bytes, or the ids of a `tokenizers` JSON file.

A tokenizer's own special tokens, cutting and padding are left off: the model adds what it needs,
and the task cuts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.arena.examples import Rows
from weft.arena.tasks.display import as_text
from weft.generate.text import load_tokenizer

BYTES = "bytes"


def tokenised(texts: Sequence[str], tokens: str) -> Rows:
    """One row of ids for each text."""
    if tokens == BYTES:
        return Rows.of([text.encode() for text in texts])
    tokenizer = load_tokenizer(tokens)
    kind = np.uint16 if vocabulary(tokens) <= 2**16 else np.uint32
    encoded = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return Rows.of([np.array(one.ids, dtype=kind) for one in encoded])


def vocabulary(tokens: str) -> int:
    """How many ids there are."""
    if tokens == BYTES:
        return 256
    return max(load_tokenizer(tokens).get_vocab(with_added_tokens=True).values()) + 1


def readable(row: np.ndarray, tokens: str) -> str:
    """A row of ids as text."""
    return as_text(row) if tokens == BYTES else load_tokenizer(tokens).decode(row.tolist())
