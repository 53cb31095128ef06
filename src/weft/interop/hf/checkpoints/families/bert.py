"""BERT, and the body that its many relatives share: norms after the sum, learned positions.

Devlin et al. 2018, https://arxiv.org/abs/1810.04805; RoBERTa, whose table of positions has rows for
padding in front, Liu et al. 2019, https://arxiv.org/abs/1907.11692
"""

from __future__ import annotations

import dataclasses
from typing import Any

from weft.feedforward import Dense
from weft.interop.hf.checkpoints.names import Names, Row, Rows, for_layers, rows_from, under
from weft.interop.hf.checkpoints.registry import Import, reads
from weft.interop.hf.checkpoints.settings import activation, refuse_unless
from weft.layers.embedding import Embedding
from weft.layers.norm import Norm
from weft.layers.outputs import Linear
from weft.layers.outputs.projected import ProjectedTable
from weft.mixers import Frame
from weft.models import Classifier, Encoder, LanguageModel, Stack

HEADS = ("MaskedLM", "PreTraining", "SequenceClassification", "Model")
IDS = {
    "embeddings.position_ids": "a buffer of numbers from 0",
    "embeddings.token_type_ids": "a buffer of zeros",
}
POOLER = {"pooler.*": "a layer over the first token, which no weft model of this head has"}
ATTENTION: Rows = {
    "stack.sublayers.{s}.body.project.to_q": "encoder.layer.{i}.attention.self.query",
    "stack.sublayers.{s}.body.project.to_k": "encoder.layer.{i}.attention.self.key",
    "stack.sublayers.{s}.body.project.to_v": "encoder.layer.{i}.attention.self.value",
    "stack.sublayers.{s}.body.project.to_out": "encoder.layer.{i}.attention.output.dense",
    "stack.sublayers.{s}.norm": "encoder.layer.{i}.attention.output.LayerNorm",
}
FEEDFORWARD: Rows = {
    "stack.sublayers.{f}.body.to_hidden": "encoder.layer.{i}.intermediate.dense",
    "stack.sublayers.{f}.body.to_out": "encoder.layer.{i}.output.dense",
    "stack.sublayers.{f}.norm": "encoder.layer.{i}.output.LayerNorm",
}
EMBEDDING: Rows = {
    "embedding.table": "embeddings.word_embeddings.weight",
    "embedding.positions": "embeddings.position_embeddings.weight",
    "embedding.types": "embeddings.token_type_embeddings.weight",
    "norm": "embeddings.LayerNorm",
}


def encoder(c: Any, *, length: int | None = None, **frame: Any) -> Encoder:
    """The body of an encoder like BERT's; further settings go to the frame."""
    refuse_unless(c, position_embedding_type="absolute", is_decoder=False)
    rescaled = bool(getattr(c, "rescale_embeddings", False))
    return Encoder(
        embedding=Embedding(
            vocab=c.vocab_size,
            positions="learned",
            types=getattr(c, "type_vocab_size", 0),
            multiplier=c.hidden_size**0.5 if rescaled else 1.0,
        ),
        stack=Stack(
            frame=Frame(
                dim=c.hidden_size,
                heads=c.num_attention_heads,
                length=length or c.max_position_embeddings,
                dropout=c.attention_probs_dropout_prob,
                **frame,
            ),
            order="sf",
            layers=c.num_hidden_layers,
            feedforward=Dense(
                activation=activation(c.hidden_act), hidden=c.intermediate_size, biased=True
            ),
            norm=Norm(place="post", eps=c.layer_norm_eps),
            dropout=c.hidden_dropout_prob,
        ),
    )


def body(c: Any, attention: Rows = ATTENTION, positions: Row | None = None) -> Rows:
    """Where the weights of the body come from."""
    rows = EMBEDDING | for_layers(range(c.num_hidden_layers), "sf", attention | FEEDFORWARD)
    return rows | ({} if positions is None else {"embedding.positions": positions})


def with_head(
    c: Any,
    head: str,
    trunk: Any,
    rows: Rows,
    *,
    prefix: str,
    scores: Rows,
    classes: Rows,
    table: str,
    copies: dict[str, str],
    between: str = "tanh",
    output: Any = None,
) -> Import:
    """The model of a head on a trunk: its config and its names.

    `scores` are the rows of a masked language model's output, `table` the name of its matrix where
    it is not tied; `classes` those of a classifier whose hidden layer has the activation `between`.
    """
    left_out = dict(IDS)
    if head in ("MaskedLM", "PreTraining"):
        rows, tied = under("trunk.", rows) | scores, bool(getattr(c, "tie_word_embeddings", True))
        if not tied:  # then the copy of the bias is what is used
            rows["output.weight"] = table
            for copy, original in copies.items():
                rows["output.bias"] = f"{copy}|{original}"
                left_out[original] = "unused beside the matrix's own"
        output = output or ProjectedTable(
            width=trunk.embedding.factor,
            between=activation(c.hidden_act),
            norm_eps=c.layer_norm_eps,
        )
        left_out |= POOLER | {"cls.seq_relationship.*": "the head of next-sentence prediction"}
        embeddings = "embeddings.word_embeddings.weight"
        copies = {**copies, **({table: embeddings} if tied else {})}
        model: Any = LanguageModel(trunk=trunk, tied=tied, output=output)
        return Import(model, Names(rows, prefix, copies, left_out))
    if head == "SequenceClassification":
        model = Classifier(
            trunk=trunk, classes=c.num_labels, pool="first", hidden=c.hidden_size, between=between
        )
        return Import(model, Names(under("trunk.", rows) | classes, prefix, {}, left_out))
    return Import(trunk, Names(rows, prefix, {}, left_out | POOLER))


BERT_SCORES: Rows = {
    "output.hidden": "cls.predictions.transform.dense",
    "output.norm": "cls.predictions.transform.LayerNorm",
    "output.bias": "cls.predictions.bias",
}
BERT_TABLE = {"table": "cls.predictions.decoder.weight"}
BERT_COPIES = {"cls.predictions.decoder.bias": "cls.predictions.bias"}
BERT_CLASSES: Rows = {"head.0": "pooler.dense", "head.2": "classifier"}
ROBERTA_SCORES: Rows = {
    "output.hidden": "lm_head.dense",
    "output.norm": "lm_head.layer_norm",
    "output.bias": "lm_head.bias",
}
ROBERTA_NAMES = {
    "scores": ROBERTA_SCORES,
    "table": "lm_head.decoder.weight",
    "copies": {"lm_head.decoder.bias": "lm_head.bias"},
    "classes": {"head.0": "classifier.dense", "head.2": "classifier.out_proj"},
}


@reads("bert", heads=HEADS)
def bert(c: Any, head: str) -> Import:
    """BERT."""
    names: Any = {
        "scores": BERT_SCORES,
        "copies": BERT_COPIES,
        "classes": BERT_CLASSES,
        **BERT_TABLE,
    }
    return with_head(c, head, encoder(c), body(c), prefix="bert.", **names)


@reads("roberta", heads=HEADS)
def roberta(c: Any, head: str) -> Import:
    """RoBERTa: positions start behind the row of padding."""
    trunk, rows = after_padding(c)
    names: Any = ROBERTA_NAMES
    reading = with_head(c, head, trunk, rows, prefix="roberta.", **names)
    return with_gelu(reading)


@reads("xlm-roberta", heads=HEADS)
def xlm_roberta(c: Any, head: str) -> Import:
    """XLM-RoBERTa: RoBERTa with another vocabulary."""
    return roberta(c, head)


def after_padding(c: Any, attention: Rows = ATTENTION, **frame: Any) -> tuple[Encoder, Rows]:
    """A trunk, and its names, whose first position has the row behind that of padding."""
    first = c.pad_token_id + 1
    trunk = encoder(c, length=c.max_position_embeddings - first, **frame)
    positions = rows_from("embeddings.position_embeddings.weight", first)
    return trunk, body(c, attention, positions)


def with_gelu(reading: Import) -> Import:
    """RoBERTa's head has gelu whatever the activation of the layers is."""
    model = reading.config
    if not isinstance(model, LanguageModel) or isinstance(model.output, Linear):
        return reading
    output: Any = model.output
    output = dataclasses.replace(output, between="gelu")
    return dataclasses.replace(reading, config=dataclasses.replace(model, output=output))
