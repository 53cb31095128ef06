"""T5: an encoder-decoder with relative positions shared by its layers, and no biases.

Raffel et al. 2019, https://arxiv.org/abs/1910.10683. Scores are not divided by √d; feed-forwards
are gated in version 1.1.
"""

from __future__ import annotations

from typing import Any

from weft.feedforward import Dense
from weft.interop.hf.checkpoints.names import Names, Row, Rows, for_layers, under, within
from weft.interop.hf.checkpoints.registry import Import, reads
from weft.interop.hf.checkpoints.settings import activation, gate
from weft.layers.embedding import Embedding
from weft.layers.norm import Norm
from weft.layers.outputs import Linear
from weft.layers.positions import T5Bias
from weft.layers.projections.dense import DenseProjection
from weft.mixers import Frame, FullAttention
from weft.models import Decoder, Encoder, EncoderDecoder, LanguageModel, Stack

HEADS = ("ConditionalGeneration", "Model")


def side(c: Any, *, causal: bool, feedforward: Any, layers: int, mixer: Any = None) -> Any:
    """One of the two stacks; `feedforward` is that of every layer, or of each."""
    positions = T5Bias(
        buckets=c.relative_attention_num_buckets,
        max_distance=c.relative_attention_max_distance,
        causal=causal,
        across_layers=True,
    )
    frame = Frame(
        dim=c.d_model,
        heads=c.num_heads,
        head_dim=c.d_kv,
        bias=False,
        dropout=c.dropout_rate,
        positions=positions,
        projection=DenseProjection(query_scale=c.d_kv**0.5),
    )
    stack = Stack(
        frame=frame,
        order="scf" if causal else "sf",
        layers=layers,
        mixer=mixer or FullAttention(),
        feedforward=feedforward,
        norm=Norm(kind="rms", eps=c.layer_norm_epsilon),
        dropout=c.dropout_rate,
    )
    return (Decoder if causal else Encoder)(embedding=Embedding(vocab=c.vocab_size), stack=stack)


def dense(c: Any) -> Dense:
    """The feed-forward of every layer."""
    act = c.dense_act_fn
    return Dense(activation=gate(act) if c.is_gated_act else activation(act), hidden=c.d_ff)


def attention(source: str, letter: str, place: int) -> Rows:
    """The weights of one attention sublayer."""
    inside = f"stack.sublayers.{{{letter}}}"
    rows: Rows = {
        f"{inside}.body.project.to_{mine}": f"block.{{i}}.layer.{place}.{source}.{theirs}"
        for mine, theirs in (("q", "q"), ("k", "k"), ("v", "v"), ("out", "o"))
    }
    return {f"{inside}.norm": f"block.{{i}}.layer.{place}.layer_norm", **rows}


def feedforward(c: Any, place: int) -> Rows:
    """The weights of one feed-forward sublayer."""
    inside, theirs = "stack.sublayers.{f}", f"block.{{i}}.layer.{place}"
    rows: Rows = {
        f"{inside}.norm": f"{theirs}.layer_norm",
        f"{inside}.body.to_hidden": f"{theirs}.DenseReluDense.wi",
        f"{inside}.body.to_out": f"{theirs}.DenseReluDense.wo",
    }
    if c.is_gated_act:
        rows[f"{inside}.body.to_gate"] = f"{theirs}.DenseReluDense.wi_0"
        rows[f"{inside}.body.to_hidden"] = f"{theirs}.DenseReluDense.wi_1"
    return rows


def bias_row(side: str, source: str) -> Row:
    """The table of positions, which the first layer of a side holds for all."""
    return f"{side}.block.0.layer.0.{source}.relative_attention_bias.weight"


def of_layers(c: Any, encoder: Rows, decoder: Rows) -> tuple[Rows, Rows]:
    """The names of all layers of both stacks, from those of a layer of each."""
    below = for_layers(range(c.num_layers), "sf", encoder)
    return below, for_layers(range(c.num_decoder_layers), "scf", decoder)


def sides(encoder: Rows, decoder: Rows, source: str = "SelfAttention") -> Rows:
    """The names of both stacks; `source` is the encoder's attention."""
    rows: Rows = {"encoder.embedding.table": "shared.weight"}
    own = {"encoder": (encoder, source), "decoder": (decoder, "SelfAttention")}
    for name, (layers, attends) in own.items():
        inner = within(f"{name}.", layers) | {"stack.norm": f"{name}.final_layer_norm"}
        inner["stack.sublayers.0.body.positions.table"] = bias_row(name, attends)
        rows |= under(f"{name}.", inner)
    return rows


def reading(c: Any, head: str, trunk: EncoderDecoder, rows: Rows) -> Import:
    """The model, and its names."""
    copies = {f"{side}.embed_tokens.weight": "shared.weight" for side in ("encoder", "decoder")}
    left_out = {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": "unused"}
    if head == "Model":
        return Import(trunk, Names(rows, "", copies, left_out))
    # Before Transformers 5 the config of T5 1.1 said by `tie_word_embeddings` what is now said by
    # `scale_decoder_outputs`.
    tied = bool(c.tie_word_embeddings)
    scaled = bool(getattr(c, "scale_decoder_outputs", tied))
    output = Linear(logit_scale=c.d_model**-0.5 if scaled else 1.0)
    rows = under("trunk.", rows) | ({} if tied else {"head": "lm_head.weight"})
    copies |= {"lm_head.weight": "shared.weight"} if tied else {}
    model = LanguageModel(trunk=trunk, tied=tied, output=output)
    return Import(model, Names(rows, "", copies, left_out))


def trunk_of(encoder: Any, decoder: Any) -> EncoderDecoder:
    """Both stacks over one table."""
    return EncoderDecoder(encoder=encoder, decoder=decoder, shares_embedding=True)


@reads("t5", heads=HEADS)
def t5(c: Any, head: str) -> Import:
    """T5, 1.0 and 1.1."""
    return read(c, head, FullAttention(), "SelfAttention")


def read(c: Any, head: str, mixer: Any, source: str) -> Import:
    """A model of dense feed-forwards whose encoder has this attention, named `source`."""
    each = {"feedforward": dense(c)}
    encoder = side(c, causal=False, layers=c.num_layers, mixer=mixer, **each)
    decoder = side(c, causal=True, layers=c.num_decoder_layers, **each)
    rows = sides(
        *of_layers(
            c,
            attention(source, "s", 0) | feedforward(c, 1),
            attention("SelfAttention", "s", 0)
            | attention("EncDecAttention", "c", 1)
            | feedforward(c, 2),
        ),
        source,
    )
    return reading(c, head, trunk_of(encoder, decoder), rows)
