"""A user's text as rows of token ids: some to train on, some held out.

A row begins and ends with the special tokens that the tokenizer puts around a text. Documents of a
row's length are cut by themselves; shorter ones and what is left of each are joined, the
tokenizer's separator between them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.files import read_text

_KINDS = (".txt", ".text", ".md", ".jsonl")
_SHARE = 10  # of the rows, one in so many is held out, up to the number asked for


class Ends(NamedTuple):
    """The ids that a tokenizer puts before and after a text; None: none."""

    start: int | None = None
    end: int | None = None

    @property
    def count(self) -> int:
        """How many they are."""
        return (self.start is not None) + (self.end is not None)

    def around(self, body: Tensor) -> Tensor:
        """body (n,) -> (n + count,)."""
        given = [body]
        if self.start is not None:
            given.insert(0, body.new_tensor([self.start]))
        if self.end is not None:
            given.append(body.new_tensor([self.end]))
        return torch.cat(given)

    def inside(self, row: Tensor) -> slice:
        """Where the text of a row is."""
        return slice(int(self.start is not None), len(row) - int(self.end is not None))


@dataclass(frozen=True)
class TextRows:
    """Rows (r, n) of int32, and what they were made of."""

    train: Tensor
    held: Tensor
    note: str


def ends_of(tokenizer: Any) -> Ends:
    """What this tokenizer puts around a text."""
    ids = list(tokenizer("", verbose=False)["input_ids"])
    if len(ids) == 2:
        return Ends(*ids)
    if len(ids) == 1:
        closes = ids[0] == tokenizer.eos_token_id != tokenizer.bos_token_id
        return Ends(None, ids[0]) if closes else Ends(ids[0], None)
    return Ends()


def read_documents(path: Path) -> list[str]:
    """The texts of a file, or of all files in a folder; a line of a .jsonl file is one."""
    if path.is_dir():
        files = sorted(f for f in path.rglob("*") if f.suffix in _KINDS and f.is_file())
        if not files:
            raise WeftError(f"{path} has no files of text: {', '.join(_KINDS)}")
        return [text for file in files for text in read_documents(file)]
    if not path.is_file():
        raise WeftError(f"there is no text {str(path)!r}; give a file, or a folder of files")
    text = read_text(path)
    if path.suffix != ".jsonl":
        return [text]
    return [_text_of(line, path, at) for at, line in enumerate(text.splitlines(), 1) if line]


def _text_of(line: str, path: Path, at: int) -> str:
    try:
        found = json.loads(line)["text"]
    except (ValueError, KeyError, TypeError, RecursionError) as cause:
        raise WeftError(
            f'{path}, line {at}: a line is {{"text": "..."}}; got {line:.60}'
        ) from cause
    if not isinstance(found, str):
        raise WeftError(f"{path}, line {at}: text is a string; got {found!r:.60}")
    return found


def split_rows(
    train: Path, held_out: Path | None, tokenizer: Any, length: int, count: int, seed: int
) -> TextRows:
    """Rows to train on and up to `count` held-out ones, by document where there are enough."""
    ends = ends_of(tokenizer)
    documents = tokens_of(read_documents(train), tokenizer)
    total = sum(map(len, documents))
    if held_out is not None:
        held = rows_of(tokens_of(read_documents(held_out), tokenizer), length, tokenizer, ends)
        rows = rows_of(documents, length, tokenizer, ends)
        _enough(train, total, len(rows), 1, length)
        _enough(held_out, held.numel(), len(held), 1, length)
        given = f"held out: {min(count, len(held))} rows of {held_out}"
        return TextRows(rows, held[:count], f"{len(rows)} rows of {train}; {given}")
    _enough(train, total, total // (length - ends.count), 2, length)
    wanted = max(1, min(count, total // length // _SHARE))
    held_documents, rest = _drawn(documents, wanted * length, seed)
    if held_documents:
        how = f"{len(held_documents)} of {len(documents)} documents, drawn by seed {seed}"
    else:
        stream = torch.cat(documents)
        cut = total - wanted * (length - ends.count)
        rest, held_documents = [stream[:cut]], [stream[cut:]]
        how = "the end of the text, since it has too few documents to leave some out"
    held = rows_of(held_documents, length, tokenizer, ends)[:count]
    rows = rows_of(rest, length, tokenizer, ends)
    _enough(train, total, len(rows) * bool(len(held)), 1, length)
    note = f"{len(rows)} rows of {train}; held out: {len(held)} rows, {how}"
    return TextRows(rows, held, note)


def held_rows(path: Path, tokenizer: Any, length: int, count: int) -> TextRows:
    """Rows to measure on alone."""
    documents = tokens_of(read_documents(path), tokenizer)
    rows = rows_of(documents, length, tokenizer, ends_of(tokenizer))
    _enough(path, sum(map(len, documents)), len(rows), 1, length)
    rows = rows[:count]
    return TextRows(rows[:0], rows, f"measured on {len(rows)} rows of {path}; nothing was trained")


def _enough(path: Path, tokens: int, rows: int, needed: int, length: int) -> None:
    if rows < needed:
        what = "one to train on and one held out" if needed > 1 else "a row"
        raise WeftError(
            f"{path} has {tokens:,} tokens; at least {needed * length:,} are needed, for {what} of "
            f"{length:,}: give more text, or a smaller --length"
        )


def _drawn(documents: list[Tensor], tokens: int, seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Whole documents with this many tokens, and the others; none where they are too few."""
    order = torch.randperm(len(documents), generator=torch.Generator().manual_seed(seed)).tolist()
    chosen, count = [], 0
    room = sum(map(len, documents)) // 4
    for at in order:
        if count < tokens and count + len(documents[at]) <= max(room, tokens):
            chosen.append(at)
            count += len(documents[at])
    if count < tokens or len(chosen) == len(documents):
        return [], documents
    rest = [own for at, own in enumerate(documents) if at not in set(chosen)]
    return [documents[at] for at in sorted(chosen)], rest


def tokens_of(texts: list[str], tokenizer: Any) -> list[Tensor]:
    """The ids of each text, without special tokens."""
    found = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    return [torch.tensor(ids, dtype=torch.int32) for ids in found if len(ids)]


def rows_of(documents: list[Tensor], length: int, tokenizer: Any, ends: Ends) -> Tensor:
    """Rows (r, length)."""
    inner = length - ends.count
    pieces, left = [], []
    divider = tokenizer.sep_token_id if ends.end is not None else tokenizer.eos_token_id
    between = torch.tensor([] if divider is None else [divider], dtype=torch.int32)
    for own in documents:
        whole = len(own) // inner * inner
        pieces += own[:whole].split(inner) if whole else []
        left += [own[whole:], between] if whole < len(own) else []
    joined = torch.cat(left) if left else torch.zeros(0, dtype=torch.int32)
    whole = len(joined) // inner * inner
    pieces += joined[:whole].split(inner) if whole else []
    if not pieces:
        return torch.zeros(0, length, dtype=torch.int32)
    return torch.stack([ends.around(piece) for piece in pieces])
