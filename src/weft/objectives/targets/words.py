"""Which tokens make up a word, so that words are hidden whole.

    "tokens"     every token separately
    "bytes"      tokens are bytes: a word is the text between white space, and each white-space
                 byte is by itself
    "given"      the batch says it: `Batch.words`
    a file       a `tokenizers` JSON file: its tokens say where a word begins (▁ or Ġ in front) or
                 goes on (WordPiece's ##)

Paper: whole-word masking in the BERT release of May 2019, https://github.com/google-research/bert
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.files import parse_json, read_text
from weft.objectives.batch import Batch

_BEGINS = ("▁", "Ġ")


def word_numbers(batch: Batch, ids: Tensor, valid: Tensor | None, words: str) -> Tensor | None:
    """The number of each token's word in its row (b, n), below n; None: no words."""
    if words == "tokens":
        return None
    if words == "given":
        if batch.words is None or batch.words.shape != ids.shape:
            raise WeftError(
                "words='given' reads the word of each token from Batch.words, shaped like the ids; "
                f"got {None if batch.words is None else tuple(batch.words.shape)}"
            )
        return _renumbered(batch.words)
    if valid is None:
        return begins(ids, words).long().cumsum(1) - 1
    order = (~valid).to(torch.uint8).argsort(dim=1, stable=True)  # real tokens first
    number = begins(ids.gather(1, order), words).long().cumsum(1) - 1  # (b, n)
    return number.gather(1, order.argsort(1))


def begins(ids: Tensor, words: str) -> Tensor:
    """Where a word begins: ids (b, n) -> (b, n)."""
    if words == "bytes":
        space = (ids == 32) | ((ids >= 9) & (ids <= 13))
        first = space | space.roll(1, 1)
    else:
        flags = torch.tensor(_first_pieces(words), device=ids.device)  # (vocab,)
        if len(ids) and int(ids.max()) >= len(flags):
            raise WeftError(f"{words} has {len(flags)} tokens; got the id {int(ids.max())}")
        first = flags[ids.long()]
    first = first.clone()
    first[:, :1] = True
    return first


def _renumbered(words: Tensor) -> Tensor:
    """Any numbering -> one below n: each word has the index of its first token."""
    same = words[:, :, None] == words[:, None, :]  # (b, n, n)
    return same.to(torch.uint8).argmax(-1)


@lru_cache(maxsize=8)
def _first_pieces(path: str) -> tuple[bool, ...]:
    """For each id of a tokenizer, whether it begins a word."""
    try:
        content = parse_json(read_text(Path(path)), path)
        model, added = content["model"], content.get("added_tokens", [])
        vocab = model["vocab"]
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise WeftError(
            f"words is 'tokens', 'bytes', 'given' or a `tokenizers` JSON file; got {path!r}: "
            f"{cause}"
        ) from cause
    pairs = vocab.items() if isinstance(vocab, dict) else [(p[0], i) for i, p in enumerate(vocab)]
    pieces = {number: token for token, number in pairs}
    special = {token["id"]: token["content"] for token in added}
    size = max([*pieces, *special], default=-1) + 1
    goes_on = model.get("continuing_subword_prefix") or "##"
    if any(token.startswith(goes_on) for token in pieces.values()):
        plain = {number: not token.startswith(goes_on) for number, token in pieces.items()}
    elif any(token.startswith(_BEGINS) for token in pieces.values()):
        plain = {number: token.startswith(_BEGINS) for number, token in pieces.items()}
    else:
        raise WeftError(
            f"the tokens of {path} do not say where words begin (▁, Ġ) or go on ({goes_on}); "
            "give Batch.words and words='given'"
        )
    return tuple(number in special or plain.get(number, True) for number in range(size))
