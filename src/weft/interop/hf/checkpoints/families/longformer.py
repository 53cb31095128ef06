"""Longformer: RoBERTa with a window in every layer, and global tokens projected by matrices apart.

Beltagy et al. 2020, https://arxiv.org/abs/2004.05150. Their `attention_window` counts both sides:
512 is window=257 here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from weft.interop.hf.checkpoints.families.bert import (
    ATTENTION,
    HEADS,
    ROBERTA_NAMES,
    after_padding,
    with_gelu,
    with_head,
)
from weft.interop.hf.checkpoints.names import Rows
from weft.interop.hf.checkpoints.registry import Import, reads
from weft.mixers import Longformer

GLOBAL: Rows = {
    f"stack.sublayers.{{s}}.body.to_{letter}_global": (
        f"encoder.layer.{{i}}.attention.self.{name}_global"
    )
    for letter, name in (("q", "query"), ("k", "key"), ("v", "value"))
}


def windows(c: Any, layers: int) -> tuple[int, ...]:
    """The reach of each layer, itself included."""
    told = c.attention_window
    each = told if isinstance(told, (list, tuple)) else [told] * layers
    return tuple(window // 2 + 1 for window in each)


@reads(
    "longformer",
    heads=HEADS,
    note="global tokens by marks={'is_global': mask}; a classifier's first token is global",
)
def longformer(c: Any, head: str) -> Import:
    """Longformer."""
    first = 1 if head == "SequenceClassification" else 0
    mixer = Longformer(window=windows(c, c.num_hidden_layers), global_first=first)
    trunk, rows = after_padding(c, ATTENTION | GLOBAL)
    trunk = dataclasses.replace(trunk, stack=dataclasses.replace(trunk.stack, mixer=mixer))
    names: Any = ROBERTA_NAMES
    return with_gelu(with_head(c, head, trunk, rows, prefix="longformer.", **names))
