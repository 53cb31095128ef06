"""A weft model's way of reading text as a tokenizer of Transformers: bytes, or the user's file.

The folder has a `tokenizer.json` that any Transformers reads. Ids are those that weft gives: no
special tokens are added. Padding is a token of its own, with an id of the vocabulary where the file
has one, else behind it; the models hide it.
"""

from __future__ import annotations

import json
from typing import Any

from transformers import PreTrainedTokenizerFast

from weft.errors import WeftError
from weft.generate.text import tokenizer_of
from weft.models.usage.record import Usage

PAD, MASK = "<|pad|>", "<|mask|>"


def tokenizer_for(usage: Usage | None, mask_id: int | None = None) -> Any | None:
    """The tokenizer of a model with this usage and mask token; None where it is not known."""
    if usage is None or usage.tokens == "none":
        return None
    text = usage.tokenizer
    if usage.tokens == "bytes":
        made = byte_tokenizer()
    elif text is None:
        raise WeftError(f"this model reads {usage.tokens}, and its folder has no such file")
    else:
        table = json.loads(text)
        table["post_processor"] = None  # weft adds no special tokens
        made = tokenizer_of(json.dumps(table))
    given = {"model_max_length": usage.length} if usage.length else {}
    fast = PreTrainedTokenizerFast(tokenizer_object=made, padding_side="right", **given)
    if mask_id is not None:  # first, so that it gets the id behind bytes
        at = len(fast)
        named = fast.convert_ids_to_tokens(mask_id) if mask_id < at else MASK
        if mask_id <= at and named is not None:
            fast.add_special_tokens({"mask_token": named})
    known = next((name for name in (PAD, "<pad>", "[PAD]") if name in fast.get_vocab()), PAD)
    fast.add_special_tokens({"pad_token": known})
    fast.model_input_names = ["input_ids", "attention_mask"]
    if usage.kind == "language":
        fast.padding_side = "left"  # texts go on behind their last token
    return fast


def byte_tokenizer() -> Any:
    """Each id is a byte of UTF-8, as a tokenizer of the `tokenizers` package."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocab = {letter: byte for byte, letter in enumerate(_letters())}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return made


def _letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary.

    Bytes that print stand for themselves, the others for the letters from 256 on, in order.
    """
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in prints else chr(next(others)) for byte in range(256)]
