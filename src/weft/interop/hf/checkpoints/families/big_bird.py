"""BigBird: BERT whose blocks of tokens read their neighbours and the ends of the text.

Zaheer et al. 2020, https://arxiv.org/abs/2007.14062. In evaluation the published code reads the
first block in place of each random block, and counts it as often (`BigBird(published=True)`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from weft.interop.hf.checkpoints.families.bert import (
    BERT_COPIES,
    BERT_SCORES,
    BERT_TABLE,
    HEADS,
    POOLER,
    body,
    encoder,
    with_head,
)
from weft.interop.hf.checkpoints.registry import Import, reads
from weft.interop.hf.checkpoints.settings import activation, refuse_unless
from weft.layers.projections.dense import DenseProjection
from weft.mixers import BigBird, FullAttention

NOTE = (
    "Transformers takes the last block of the padded batch, weft that of each text: equal "
    "where padding ends in the same block; in training weft draws blocks of its own"
)


def mixer(c: Any) -> Any:
    """The attention of every layer."""
    refuse_unless(c, attention_type=("block_sparse", "original_full"))
    if c.attention_type == "original_full":
        return FullAttention()
    return BigBird(block=c.block_size, random=c.num_random_blocks, published=True)


@reads("big_bird", heads=HEADS, note=NOTE)
def big_bird(c: Any, head: str) -> Import:
    """BigBird."""
    biases = DenseProjection(biases="qkvo" if c.use_bias else "o")
    trunk = encoder(c, projection=biases)
    trunk = dataclasses.replace(trunk, stack=dataclasses.replace(trunk.stack, mixer=mixer(c)))
    names: Any = {"scores": BERT_SCORES, "copies": BERT_COPIES, **BERT_TABLE}
    classes: Any = {"head.0": "classifier.dense", "head.2": "classifier.out_proj"}
    reading = with_head(
        c,
        head,
        trunk,
        body(c),
        prefix="bert.",
        classes=classes,
        between=activation(c.hidden_act),
        **names,
    )
    left_out = {**reading.names.left_out, **POOLER}
    return dataclasses.replace(reading, names=dataclasses.replace(reading.names, left_out=left_out))
