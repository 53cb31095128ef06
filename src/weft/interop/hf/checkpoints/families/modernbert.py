"""ModernBERT: rotary positions, windows in most layers, gated feed-forwards, almost no biases.

Warner et al. 2024, https://arxiv.org/abs/2412.13663. Norms stand before sublayers; the embedding is
normalised, so the first sublayer has no norm of its own. `local_attention` counts both sides: 128
is window=65 here.
"""

from __future__ import annotations

from typing import Any

from weft.feedforward import Dense
from weft.interop.hf.checkpoints.names import Names, Rows, for_layers, part, under
from weft.interop.hf.checkpoints.registry import Import, reads
from weft.interop.hf.checkpoints.settings import (
    activation,
    by_layer_type,
    gate,
    refuse_unless,
    rope,
)
from weft.layers.embedding import Embedding
from weft.layers.norm import Norm
from weft.layers.outputs.projected import ProjectedTable
from weft.mixers import Frame, FullAttention, SlidingWindow
from weft.models import Classifier, Encoder, LanguageModel, Stack

LAYER: Rows = {
    "stack.sublayers.{s}.norm": "layers.{i}.attn_norm",
    "stack.sublayers.{s}.body.project.to_out": "layers.{i}.attn.Wo",
    "stack.sublayers.{f}.norm": "layers.{i}.mlp_norm",
    "stack.sublayers.{f}.body.to_gate": part("layers.{i}.mlp.Wi", 0, 2),
    "stack.sublayers.{f}.body.to_hidden": part("layers.{i}.mlp.Wi", 1, 2),
    "stack.sublayers.{f}.body.to_out": "layers.{i}.mlp.Wo",
}
LAYER |= {
    f"stack.sublayers.{{s}}.body.project.to_{letter}": part("layers.{i}.attn.Wqkv", place, 3)
    for place, letter in enumerate("qkv")
}
BODY: Rows = {
    "embedding.table": "embeddings.tok_embeddings.weight",
    "norm": "embeddings.norm",
    "stack.norm": "final_norm",
}


def trunk(c: Any) -> Encoder:
    """The body."""
    by_type = {
        "full_attention": FullAttention(),
        "sliding_attention": SlidingWindow(window=c.local_attention // 2 + 1),
    }
    return Encoder(
        embedding=Embedding(vocab=c.vocab_size),
        stack=Stack(
            frame=Frame(
                dim=c.hidden_size,
                heads=c.num_attention_heads,
                dropout=c.attention_dropout,
                bias=c.attention_bias,
            ),
            order="sf",
            layers=c.num_hidden_layers,
            mixer=by_layer_type(c, by_type),
            feedforward=Dense(
                activation=gate(c.hidden_activation), hidden=c.intermediate_size, biased=c.mlp_bias
            ),
            norm=Norm(eps=c.norm_eps, enters=True, first=False, shift=c.norm_bias),
            dropout=c.mlp_dropout,
            layer_positions=tuple(rope(c, each) for each in c.layer_types),
        ),
    )


@reads("modernbert", heads=("MaskedLM", "SequenceClassification", "Model"))
def modernbert(c: Any, head: str) -> Import:
    """ModernBERT."""
    refuse_unless(c, decoder_bias=True)
    rows = BODY | for_layers(range(c.num_hidden_layers), "sf", LAYER)
    if head == "Model":
        return Import(trunk(c), Names(rows, "model."))
    rows, between = under("trunk.", rows), activation(c.classifier_activation)
    if head == "SequenceClassification":
        model: Any = Classifier(
            trunk=trunk(c),
            classes=c.num_labels,
            pool="first" if c.classifier_pooling == "cls" else "mean",
            hidden=c.hidden_size,
            between=between,
            hidden_bias=c.classifier_bias,
            hidden_norm=Norm(eps=c.norm_eps, shift=c.norm_bias),
        )
        rows |= {"head.0": "head.dense", "head.1.norm": "head.norm", "head.2": "classifier"}
        return Import(model, Names(rows, "model."))
    tied = bool(c.tie_word_embeddings)
    rows |= {"output.hidden": "head.dense", "output.norm": "head.norm"}
    rows |= {"output.bias": "decoder.bias"} | ({} if tied else {"output.weight": "decoder.weight"})
    copies = {"decoder.weight": "embeddings.tok_embeddings.weight"} if tied else {}
    output = ProjectedTable(
        between=between,
        norm_eps=c.norm_eps,
        hidden_bias=c.classifier_bias,
        norm_shift=c.norm_bias,
    )
    model = LanguageModel(trunk=trunk(c), tied=tied, output=output)
    return Import(model, Names(rows, "model.", copies))
