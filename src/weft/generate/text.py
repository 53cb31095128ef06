"""Ids to text and back: bytes of UTF-8, or a `tokenizers` JSON file.

A writer decodes ids one at a time. It holds back incomplete characters, so the concatenated pieces
are the text of all ids.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from weft.errors import WeftError

_LONGEST = 4  # bytes of a character in UTF-8
_CONTEXT = 6  # ids before a new one that its text may depend on
_UNKNOWN = "\ufffd"


class Writer(Protocol):
    """Decodes ids one at a time into whole characters."""

    def push(self, token: int) -> str:
        """The text that this id completes; may be empty."""
        ...

    def end(self) -> str:
        """The text held back, invalid bytes as U+FFFD."""
        ...


class TextCodec(Protocol):
    """How text becomes ids, and ids text."""

    vocab: int

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special ones."""
        ...

    def writer(self, before: Sequence[int] = ()) -> Writer:
        """A writer for the ids that follow `before`."""
        ...


class ByteText:
    """Each id is a byte of UTF-8."""

    vocab = 256

    def encode(self, text: str) -> list[int]:
        """The bytes."""
        return list(text.encode("utf-8"))

    def writer(self, before: Sequence[int] = ()) -> ByteWriter:
        """A writer; a character that begins in `before` is written whole."""
        return ByteWriter(before)


class ByteWriter:
    """Bytes in, whole characters out."""

    def __init__(self, before: Sequence[int]) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder.decode(bytes(before[-_LONGEST:]))

    def push(self, token: int) -> str:
        """The characters that this byte completes."""
        if not 0 <= token < ByteText.vocab:
            raise WeftError(
                f"a byte is 0 to 255; got the id {token}. Is this model's text made by a "
                "tokenizer? Give its file"
            )
        return self._decoder.decode(bytes([token]))

    def end(self) -> str:
        """U+FFFD where a character is incomplete."""
        return self._decoder.decode(b"", final=True)


class TokenizerText:
    """Ids of a tokenizer of the `tokenizers` package."""

    def __init__(self, path: str | Path) -> None:
        self._tokenizer = load_tokenizer(path)
        self.vocab = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    def encode(self, text: str) -> list[int]:
        """The ids."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def writer(self, before: Sequence[int] = ()) -> TokenizerWriter:
        """A writer; the last ids of `before` decide about spaces between words."""
        return TokenizerWriter(self._tokenizer, before)


class TokenizerWriter:
    """Decodes the last few ids with and without each new one; the difference is its text."""

    def __init__(self, tokenizer: Any, before: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(before[-_CONTEXT:])
        self._written = len(self._ids)  # ids whose text was returned

    def push(self, token: int) -> str:
        """The text that this id completes."""
        self._ids.append(token)
        piece = self._piece()
        if not piece or piece.endswith(_UNKNOWN):
            return ""
        self._ids = self._ids[-max(_CONTEXT, len(self._ids) - self._written) :]
        self._written = len(self._ids)
        return piece

    def end(self) -> str:
        """What was held back."""
        piece, self._written = self._piece(), len(self._ids)
        return piece

    def _piece(self) -> str:
        before = self._decode(self._ids[: self._written])
        return self._decode(self._ids)[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)


def load_tokenizer(path: str | Path) -> Any:
    """The tokenizer of a JSON file."""
    try:
        from tokenizers import Tokenizer
    except ImportError as cause:
        raise WeftError(
            f"reading {path} needs the tokenizers package: pip install tokenizers"
        ) from cause
    if not Path(path).is_file():
        raise WeftError(f"a tokenizer is a `tokenizers` JSON file; there is no {str(path)!r}")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as cause:  # the package raises plain Exceptions
        raise WeftError(f"{path} is not a `tokenizers` JSON file: {cause}") from cause
    return _plain(tokenizer)


def tokenizer_of(text: str) -> Any:
    """The tokenizer of the text of a `tokenizers` JSON file."""
    try:
        from tokenizers import Tokenizer
    except ImportError as cause:
        raise WeftError(
            "this model's tokenizer needs the tokenizers package: pip install tokenizers"
        ) from cause
    return _plain(Tokenizer.from_str(text))


def _plain(tokenizer: Any) -> Any:
    """Without cutting and padding of its own."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
