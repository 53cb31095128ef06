"""Texts to ids: their UTF-8 bytes, or the ids of a `tokenizers` tokenizer, and which are global.

A tokenizer's own special tokens, cutting and padding are left off: the model adds what it needs,
and the task cuts. Training (the table task) and prediction both come through here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Spans = Sequence[tuple[int, int]]  # of characters, each from its first to before its end


def encode(
    texts: Sequence[str], tokenizer: Any, spans: Sequence[Spans] | None = None
) -> tuple[list[np.ndarray], list[np.ndarray] | None]:
    """The ids of each text, and which of them touch its `spans` of characters.

    `tokenizer` is one of the `tokenizers` package; None: bytes.
    """
    if tokenizer is None:
        rows = [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]
        ends = [_byte_ends(text) for text in texts] if spans is not None else []
    else:
        encoded = tokenizer.encode_batch(list(texts), add_special_tokens=False)
        kind = np.uint16 if vocabulary_of(tokenizer) <= 2**16 else np.uint32
        rows = [np.array(one.ids, dtype=kind) for one in encoded]
        ends = [np.array(one.offsets, dtype=np.int64).reshape(-1, 2) for one in encoded]
    if spans is None:
        return rows, None
    return rows, [_touching(each, own) for each, own in zip(ends, spans, strict=True)]


def with_lead(lead: str | None, text: str) -> str:
    """A text behind the global text that leads it, such as a question."""
    return f"{lead}\n{text}" if lead else text


def global_spans(text: str, lead: int, after: str) -> Spans:
    """The characters that are global: the first `lead`, and the last of each `after`."""
    found = [(0, lead)] if lead else []
    at = text.find(after, lead) if after else -1
    while at >= 0:
        found.append((at + len(after) - 1, at + len(after)))
        at = text.find(after, at + len(after))
    return found


def vocabulary_of(tokenizer: Any) -> int:
    """How many ids there are."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def _byte_ends(text: str) -> np.ndarray:
    """The character of each byte of a text, and the one after it: (bytes, 2)."""
    sizes = [len(character.encode()) for character in text] if not text.isascii() else 1
    first = np.repeat(np.arange(len(text)), sizes)
    return np.stack((first, first + 1), axis=1)


def _touching(offsets: np.ndarray, spans: Spans) -> np.ndarray:
    """Which tokens, from and to these characters (tokens, 2), hold one of the spans: (tokens,)."""
    found = np.zeros(len(offsets), dtype=bool)
    for start, end in spans:
        found |= (offsets[:, 0] < end) & (offsets[:, 1] > start)
    return found
