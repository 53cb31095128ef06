"""ELECTRA: BERT with a table narrower than the model, whose normalised sum is then widened.

Clark et al. 2020, https://arxiv.org/abs/2003.10555
"""

from __future__ import annotations

import dataclasses
from typing import Any

from weft.interop.hf.checkpoints.families.bert import HEADS, body, encoder, with_head
from weft.interop.hf.checkpoints.names import Rows
from weft.interop.hf.checkpoints.registry import Import, reads
from weft.layers.norm import Norm
from weft.layers.outputs.projected import ProjectedTable
from weft.models import Encoder


def widened(trunk: Encoder, width: int, eps: float) -> Encoder:
    """The trunk with tokens, types and positions of this width, normalised before widening."""
    stack = trunk.stack
    norm = dataclasses.replace(stack.norm, enters=False)
    embedding = dataclasses.replace(trunk.embedding, factor=width, sum_norm=Norm(eps=eps))
    return dataclasses.replace(
        trunk, embedding=embedding, stack=dataclasses.replace(stack, norm=norm)
    )


def widened_rows(rows: Rows, source: str) -> Rows:
    """The names of such a trunk; `source` is the widening matrix."""
    rest = {name: row for name, row in rows.items() if name != "norm"}
    return rest | {"embedding.norm": "embeddings.LayerNorm", "embedding.widen": source}


@reads(
    "electra",
    heads=HEADS,
    note="of a discriminator (PreTraining) the body alone is read",
)
def electra(c: Any, head: str) -> Import:
    """ELECTRA: the generator as a language model, the discriminator's body as an encoder."""
    trunk, rows = encoder(c), body(c)
    if c.embedding_size != c.hidden_size:
        trunk = widened(trunk, c.embedding_size, c.layer_norm_eps)
        rows = widened_rows(rows, "embeddings_project")
    if head == "PreTraining":
        reading = _read(c, "Model", trunk, rows)
        left_out = {"discriminator_predictions.*": "the head that tells replaced tokens"}
        names = dataclasses.replace(reading.names, left_out={**reading.names.left_out, **left_out})
        return dataclasses.replace(reading, names=names)
    return _read(c, head, trunk, rows)


def _read(c: Any, head: str, trunk: Encoder, rows: Rows) -> Import:
    return with_head(
        c,
        head,
        trunk,
        rows,
        prefix="electra.",
        scores={
            "output.hidden": "generator_predictions.dense",
            "output.norm": "generator_predictions.LayerNorm",
            "output.bias": "generator_lm_head.bias",
        },
        table="generator_lm_head.weight",
        copies={},
        classes={"head.0": "classifier.dense", "head.2": "classifier.out_proj"},
        between="gelu",
        output=ProjectedTable(
            width=c.embedding_size if c.embedding_size != c.hidden_size else None,
            between="gelu",
            norm_eps=c.layer_norm_eps,
        ),
    )
