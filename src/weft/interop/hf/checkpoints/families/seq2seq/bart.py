"""BART and its relatives: encoder-decoders with learned positions and biases.

Lewis et al. 2019, https://arxiv.org/abs/1910.13461. The first two rows of a table of positions
belong to padding. mBART (norms before the sublayers, Liu et al. 2020,
https://arxiv.org/abs/2001.08210) has a norm on the embedding and one at the end.
"""

from __future__ import annotations

from typing import Any

from weft.feedforward import Dense
from weft.interop.hf.checkpoints.names import (
    Names,
    Rows,
    Take,
    for_layers,
    rows_from,
    under,
    within,
)
from weft.interop.hf.checkpoints.registry import Import, reads
from weft.interop.hf.checkpoints.settings import activation, refuse_unless
from weft.layers.embedding import Embedding
from weft.layers.norm import Norm
from weft.layers.outputs import Linear
from weft.mixers import Frame, FullAttention
from weft.models import Decoder, Encoder, EncoderDecoder, LanguageModel, Stack

HEADS = ("ConditionalGeneration", "Model")
OFFSET = 2  # rows of a table of positions that belong to padding
FEEDFORWARD: Rows = {
    "stack.sublayers.{f}.body.to_hidden": "layers.{i}.fc1",
    "stack.sublayers.{f}.body.to_out": "layers.{i}.fc2",
    "stack.sublayers.{f}.norm": "layers.{i}.final_layer_norm",
}


def attention(letter: str, source: str) -> Rows:
    """The weights of one attention sublayer."""
    inside = f"stack.sublayers.{{{letter}}}"
    return {
        f"{inside}.body.project.to_q": f"layers.{{i}}.{source}.q_proj",
        f"{inside}.body.project.to_k": f"layers.{{i}}.{source}.k_proj",
        f"{inside}.body.project.to_v": f"layers.{{i}}.{source}.v_proj",
        f"{inside}.body.project.to_out": f"layers.{{i}}.{source}.out_proj",
        f"{inside}.norm": f"layers.{{i}}.{source}_layer_norm",
    }


def stack(
    c: Any, side: str, norm: Norm, length: int, *, mixer: Any = None, bias: bool = True
) -> Stack:
    """The body of one side, "encoder" or "decoder"."""
    return Stack(
        frame=Frame(
            dim=c.d_model,
            heads=getattr(c, f"{side}_attention_heads"),
            length=length,
            dropout=c.attention_dropout,
            bias=bias,
        ),
        order="scf" if side == "decoder" else "sf",
        layers=getattr(c, f"{side}_layers"),
        mixer=mixer or FullAttention(),
        feedforward=Dense(
            activation=activation(c.activation_function),
            hidden=getattr(c, f"{side}_ffn_dim"),
            biased=True,
        ),
        norm=norm,
        dropout=c.dropout,
    )


def embedding(c: Any) -> Embedding:
    """The embedding of either side."""
    scale = c.d_model**0.5 if getattr(c, "scale_embedding", False) else 1.0
    return Embedding(vocab=c.vocab_size, positions="learned", multiplier=scale)


def model_of(c: Any, head: str, encoder: Stack, decoder: Stack) -> Any:
    """The config of the whole."""
    trunk = EncoderDecoder(
        encoder=Encoder(embedding=embedding(c), stack=encoder),
        decoder=Decoder(embedding=embedding(c), stack=decoder),
        shares_embedding=True,
    )
    if head == "Model":
        return trunk
    output = Linear(logit_scale=1.0, logit_bias=True)
    return LanguageModel(trunk=trunk, tied=True, output=output)


def side_rows(c: Any, side: str, offset: int, attend: Rows | None = None) -> Rows:
    """The weights of one side's layers and positions."""
    layers = range(getattr(c, f"{side}_layers"))
    own = attention("s", "self_attn") if attend is None else attend
    if side == "decoder":
        inner = for_layers(layers, "scf", own | attention("c", "encoder_attn") | FEEDFORWARD)
    else:
        inner = for_layers(layers, "sf", own | FEEDFORWARD)
    inner["embedding.positions"] = rows_from("embed_positions.weight", offset)
    return inner


def reading(
    c: Any, head: str, model: Any, encoder: Rows, decoder: Rows, *, prefix: str = "model."
) -> Import:
    """The model, and its names from those of both sides."""
    rows: Rows = {"encoder.embedding.table": "shared.weight"}
    for side, inner in (("encoder", encoder), ("decoder", decoder)):
        rows |= under(f"{side}.", within(f"{side}.", inner))
    copies = {f"{side}.embed_tokens.weight": "shared.weight" for side in ("encoder", "decoder")}
    if head != "Model":
        rows = under("trunk.", rows)
        rows["output.bias"] = Take(("final_logits_bias",), lambda bias: bias[0])
        copies["lm_head.weight"] = "shared.weight"
    return Import(model, Names(rows, prefix, copies, {}))


@reads("bart", heads=HEADS)
def bart(c: Any, head: str) -> Import:
    """BART."""
    refuse_unless(c, tie_word_embeddings=True)
    norm, length = Norm(place="post"), c.max_position_embeddings
    model = model_of(c, head, stack(c, "encoder", norm, length), stack(c, "decoder", norm, length))
    enters: Rows = {"norm": "layernorm_embedding"}
    sides = (side_rows(c, side, OFFSET) | enters for side in ("encoder", "decoder"))
    return reading(c, head, model, *sides)


@reads("mbart", heads=HEADS)
def mbart(c: Any, head: str) -> Import:
    """mBART."""
    refuse_unless(c, tie_word_embeddings=True)
    norm, length = Norm(place="pre", enters=True), c.max_position_embeddings
    model = model_of(c, head, stack(c, "encoder", norm, length), stack(c, "decoder", norm, length))
    ends: Rows = {"norm": "layernorm_embedding", "stack.norm": "layer_norm"}
    sides = (side_rows(c, side, OFFSET) | ends for side in ("encoder", "decoder"))
    return reading(c, head, model, *sides)
