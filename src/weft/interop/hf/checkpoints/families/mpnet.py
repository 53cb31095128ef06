"""MPNet: BERT with relative positions, one table for all layers, besides the learned ones.

Song et al. 2020, https://arxiv.org/abs/2004.09297
"""

from __future__ import annotations

from typing import Any

from weft.interop.hf.checkpoints.families.bert import (
    HEADS,
    ROBERTA_NAMES,
    after_padding,
    with_gelu,
    with_head,
)
from weft.interop.hf.checkpoints.names import Rows
from weft.interop.hf.checkpoints.registry import Import, reads
from weft.layers.positions import T5Bias

ATTENTION: Rows = {
    "stack.sublayers.{s}.body.project.to_q": "encoder.layer.{i}.attention.attn.q",
    "stack.sublayers.{s}.body.project.to_k": "encoder.layer.{i}.attention.attn.k",
    "stack.sublayers.{s}.body.project.to_v": "encoder.layer.{i}.attention.attn.v",
    "stack.sublayers.{s}.body.project.to_out": "encoder.layer.{i}.attention.attn.o",
    "stack.sublayers.{s}.norm": "encoder.layer.{i}.attention.LayerNorm",
}


@reads("mpnet", heads=HEADS)
def mpnet(c: Any, head: str) -> Import:
    """MPNet."""
    bias = T5Bias(buckets=c.relative_attention_num_buckets, max_distance=128, across_layers=True)
    trunk, rows = after_padding(c, ATTENTION, positions=bias)
    rows |= {"stack.sublayers.0.body.positions.table": "encoder.relative_attention_bias.weight"}
    names: Any = ROBERTA_NAMES
    return with_gelu(with_head(c, head, trunk, rows, prefix="mpnet.", **names))
