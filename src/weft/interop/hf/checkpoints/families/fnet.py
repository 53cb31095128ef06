"""FNet: BERT with a Fourier transform in the place of attention.

Lee-Thorp et al. 2021, https://arxiv.org/abs/2105.03824
"""

from __future__ import annotations

import dataclasses
from typing import Any

from weft.interop.hf.checkpoints.families.bert import (
    BERT_CLASSES,
    BERT_COPIES,
    BERT_SCORES,
    HEADS,
    body,
    with_head,
)
from weft.interop.hf.checkpoints.families.bert import encoder as bert_encoder
from weft.interop.hf.checkpoints.families.electra import widened, widened_rows
from weft.interop.hf.checkpoints.names import Rows
from weft.interop.hf.checkpoints.registry import Import, reads
from weft.layers.outputs.projected import ProjectedTable
from weft.mixers import MIXERS

ATTENTION: Rows = {"stack.sublayers.{s}.norm": "encoder.layer.{i}.fourier.output.LayerNorm"}


class _AsBert:
    """FNet's config with what BERT's has besides: heads that nothing uses."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def __getattr__(self, name: str) -> Any:
        unused = {"num_attention_heads": 1, "attention_probs_dropout_prob": 0.0}
        return unused[name] if name in unused else getattr(self.config, name)


@reads("fnet", heads=HEADS, note="Transformers' FNet mixes padding in; equal where there is none")
def fnet(c: Any, head: str) -> Import:
    """FNet."""
    trunk = widened(bert_encoder(_AsBert(c)), c.hidden_size, c.layer_norm_eps)
    stack = dataclasses.replace(trunk.stack, mixer=MIXERS.make("fnet"))
    trunk = dataclasses.replace(trunk, stack=stack)
    rows = widened_rows(body(c, ATTENTION), "embeddings.projection")
    names = {"scores": BERT_SCORES, "copies": BERT_COPIES, "classes": BERT_CLASSES}
    table = "cls.predictions.decoder.weight"
    output = ProjectedTable(
        width=c.hidden_size,
        between=trunk.stack.feedforwards[0].activation,
        norm_eps=c.layer_norm_eps,
    )
    return with_head(c, head, trunk, rows, prefix="fnet.", table=table, output=output, **names)
