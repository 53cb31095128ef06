"""ALBERT: BERT whose layers share their weights, with a table narrower than the model.

Lan et al. 2019, https://arxiv.org/abs/1909.11942
"""

from __future__ import annotations

import dataclasses
from typing import Any

from weft.interop.hf.checkpoints.families.bert import EMBEDDING, HEADS, encoder, with_head
from weft.interop.hf.checkpoints.families.electra import widened, widened_rows
from weft.interop.hf.checkpoints.names import Rows, for_layers
from weft.interop.hf.checkpoints.registry import Import, reads
from weft.interop.hf.checkpoints.settings import refuse_unless

_GROUP = "encoder.albert_layer_groups.{i}.albert_layers.0"
LAYER: Rows = {
    "stack.sublayers.{s}.body.project.to_q": f"{_GROUP}.attention.query",
    "stack.sublayers.{s}.body.project.to_k": f"{_GROUP}.attention.key",
    "stack.sublayers.{s}.body.project.to_v": f"{_GROUP}.attention.value",
    "stack.sublayers.{s}.body.project.to_out": f"{_GROUP}.attention.dense",
    "stack.sublayers.{s}.norm": f"{_GROUP}.attention.LayerNorm",
    "stack.sublayers.{f}.body.to_hidden": f"{_GROUP}.ffn",
    "stack.sublayers.{f}.body.to_out": f"{_GROUP}.ffn_output",
    "stack.sublayers.{f}.norm": f"{_GROUP}.full_layer_layer_norm",
}


@reads("albert", heads=HEADS)
def albert(c: Any, head: str) -> Import:
    """ALBERT."""
    refuse_unless(c, inner_group_num=1)
    trunk = widened(encoder(c), c.embedding_size, c.layer_norm_eps)
    groups = c.num_hidden_groups
    trunk = dataclasses.replace(trunk, stack=dataclasses.replace(trunk.stack, shared=groups))
    rows = EMBEDDING | for_layers(range(groups), "sf", LAYER)
    return with_head(
        c,
        head,
        trunk,
        widened_rows(rows, "encoder.embedding_hidden_mapping_in"),
        prefix="albert.",
        scores={
            "output.hidden": "predictions.dense",
            "output.norm": "predictions.LayerNorm",
            "output.bias": "predictions.bias",
        },
        table="predictions.decoder.weight",
        copies={"predictions.decoder.bias": "predictions.bias"},
        classes={"head.0": "pooler", "head.2": "classifier"},
    )
