"""The mask token of a checkpoint: its config's, else its tokenizer's, else unknown.

A masked language model hides tokens behind one id of its vocabulary, 103 of BERT and 50,264 of
RoBERTa. `model.mask` is that id, so filling gaps and training on go on as the model was trained.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from weft.errors import WeftError
from weft.files import read_text
from weft.interop.hf.checkpoints.registry import Import
from weft.models import Encoder, LanguageModel

_USUAL = ("[MASK]", "<mask>")


def with_mask_token(
    reading: Import, settings: Any, told: int | None, given: int | None = None
) -> Import:
    """The reading, its language model with the id of the mask token; None where none is known.

    `told` is what the tokenizer says, `given` what the caller says.
    """
    model = reading.config
    if not isinstance(model, LanguageModel):
        if given is not None:
            raise WeftError(
                f"mask_id is of a masked language model; this checkpoint is a {model.name}: "
                "leave it out"
            )
        return reading
    found, vocab = given, model.trunk.embedding.vocab
    assert vocab is not None  # a language model scores tokens
    if given is None and isinstance(model.trunk, Encoder):
        said = getattr(settings, "mask_token_id", None)
        found = said if isinstance(said, int) else told
        if found is not None and not 0 <= found < vocab:
            found = None  # of a tokenizer that knows more tokens than the model has rows
    elif given is not None and not 0 <= given < vocab:
        raise WeftError(f"mask_id is one of the {vocab} ids of the checkpoint; got {given}")
    return dataclasses.replace(reading, config=dataclasses.replace(model, mask_id=found))


def mask_in(folder: Path, tokenizer: str | None) -> int | None:
    """The id of what the files of a tokenizer call its mask, or of a usual special token.

    `tokenizer` is the text of tokenizer.json.
    """
    if tokenizer is None:
        return None
    try:
        table = json.loads(tokenizer)
        added = {each["content"]: each["id"] for each in table.get("added_tokens") or ()}
        words = table["model"]["vocab"]
    except (ValueError, KeyError, TypeError) as cause:
        raise WeftError(f"tokenizer.json is not a tokenizer that can be read: {cause!r}") from cause
    if isinstance(words, list):  # a unigram model: tokens with their scores
        words = {word[0]: place for place, word in enumerate(words)}
    if (named := _named(folder)) is not None:
        return added.get(named, words.get(named))
    return next((added[token] for token in _USUAL if token in added), None)


def _named(folder: Path) -> str | None:
    """The text of the mask token, where a file beside the weights says it."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        path = folder / name
        if not path.is_file():
            continue
        try:
            said = json.loads(read_text(path)).get("mask_token")
        except (ValueError, AttributeError) as cause:
            raise WeftError(f"{path} is not valid JSON of a tokenizer: {cause}") from cause
        said = said.get("content") if isinstance(said, dict) else said
        if isinstance(said, str):
            return said
    return None
