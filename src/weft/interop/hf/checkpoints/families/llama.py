"""Llama and its relatives: rotary positions, RMS norms, grouped keys, gated feed-forwards.

Llama: Touvron et al. 2023, https://arxiv.org/abs/2302.13971. Mistral adds a window: Jiang et al.
2023, https://arxiv.org/abs/2310.06825. Qwen2 has biases on q, k and v, https://arxiv.org/abs/2407.10671.
Gemma multiplies embeddings by √c and stores gains as their distance from 1; Gemma 3 has norms on
both sides of a sublayer, normalised heads, and windows in most layers with a rotary base of their
own, https://arxiv.org/abs/2503.19786.
"""

from __future__ import annotations

from typing import Any

from weft.feedforward import Dense
from weft.interop.hf.checkpoints.names import Names, Rows, for_layers, plus_one, under
from weft.interop.hf.checkpoints.registry import Import, reads
from weft.interop.hf.checkpoints.settings import by_layer_type, gate, refuse_unless, rope
from weft.layers.embedding import Embedding
from weft.layers.norm import Norm
from weft.layers.outputs import Linear
from weft.layers.projections.dense import DenseProjection
from weft.mixers import Frame, FullAttention, SlidingWindow
from weft.models import Decoder, LanguageModel, Stack

HEADS = ("CausalLM", "Model")
ATTENTION: Rows = {
    "stack.sublayers.{s}.body.project.to_q": "layers.{i}.self_attn.q_proj",
    "stack.sublayers.{s}.body.project.to_k": "layers.{i}.self_attn.k_proj",
    "stack.sublayers.{s}.body.project.to_v": "layers.{i}.self_attn.v_proj",
    "stack.sublayers.{s}.body.project.to_out": "layers.{i}.self_attn.o_proj",
}
FEEDFORWARD: Rows = {
    "stack.sublayers.{f}.body.to_gate": "layers.{i}.mlp.gate_proj",
    "stack.sublayers.{f}.body.to_hidden": "layers.{i}.mlp.up_proj",
    "stack.sublayers.{f}.body.to_out": "layers.{i}.mlp.down_proj",
}
NORMS: Rows = {
    "stack.sublayers.{s}.norm": "layers.{i}.input_layernorm",
    "stack.sublayers.{f}.norm": "layers.{i}.post_attention_layernorm",
}
LEFT_OUT = {"*.rotary_emb.inv_freq": "rotary frequencies, which follow from the config"}


def decoder(c: Any, *, mixer: Any, norm: Norm, embed: Any = None, **stack: Any) -> Decoder:
    """The body; further settings go to the stack. `frame` among them is laid over the frame."""
    frame = {
        "dim": c.hidden_size,
        "heads": c.num_attention_heads,
        "kv_heads": c.num_key_value_heads,
        "head_dim": getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads,
        "dropout": c.attention_dropout,
        "bias": bool(getattr(c, "attention_bias", False)),
        **stack.pop("frame"),
    }
    act = getattr(c, "hidden_activation", None) or c.hidden_act
    return Decoder(
        embedding=Embedding(vocab=c.vocab_size, **(embed or {})),
        stack=Stack(
            frame=Frame(**frame),
            order="sf",
            layers=c.num_hidden_layers,
            mixer=mixer,
            feedforward=Dense(
                activation=gate(act),
                hidden=c.intermediate_size,
                biased=bool(getattr(c, "mlp_bias", False)),
            ),
            norm=norm,
            **stack,
        ),
    )


def with_head(
    c: Any, head: str, trunk: Decoder, layer: Rows, *, norm: Any = "norm", output: Linear
) -> Import:
    """The body or the language model, and its names."""
    rows: Rows = {"embedding.table": "embed_tokens.weight", "stack.norm": norm}
    rows |= for_layers(range(c.num_hidden_layers), "sf", layer)
    if head == "Model":
        return Import(trunk, Names(rows, "model.", {}, LEFT_OUT))
    tied = bool(c.tie_word_embeddings)
    rows = under("trunk.", rows) | ({} if tied else {"head": "lm_head.weight"})
    copies = {"lm_head.weight": "embed_tokens.weight"} if tied else {}
    model = LanguageModel(trunk=trunk, tied=tied, output=output)
    return Import(model, Names(rows, "model.", copies, LEFT_OUT))


def windowed(c: Any) -> Any:
    """A window in the layers that have one, full attention in the others."""
    window = getattr(c, "sliding_window", None)
    if getattr(c, "layer_types", None) is None:
        return SlidingWindow(window=window) if window else FullAttention()
    by_type: dict[str, Any] = {"full_attention": FullAttention()}
    if window:
        by_type["sliding_attention"] = SlidingWindow(window=window)
    return by_layer_type(c, by_type)


@reads("llama", heads=HEADS)
def llama(c: Any, head: str) -> Import:
    """Llama, and SmolLM, TinyLlama and others of its form."""
    norm = Norm(kind="rms", eps=c.rms_norm_eps)
    trunk = decoder(c, mixer=windowed(c), norm=norm, frame={"positions": rope(c)})
    layer = ATTENTION | FEEDFORWARD | NORMS
    return with_head(c, head, trunk, layer, output=Linear(logit_scale=1.0))


@reads("mistral", heads=HEADS)
def mistral(c: Any, head: str) -> Import:
    """Mistral: every layer reads a window, where the config has one."""
    return llama(c, head)


@reads("qwen2", heads=HEADS)
def qwen2(c: Any, head: str) -> Import:
    """Qwen2: q, k and v have biases, the output has none."""
    norm = Norm(kind="rms", eps=c.rms_norm_eps)
    frame = {"positions": rope(c), "projection": DenseProjection(biases="qkv")}
    trunk = decoder(c, mixer=windowed(c), norm=norm, frame=frame)
    layer = ATTENTION | FEEDFORWARD | NORMS
    return with_head(c, head, trunk, layer, output=Linear(logit_scale=1.0))


@reads("gemma", heads=HEADS)
def gemma(c: Any, head: str) -> Import:
    """Gemma: embeddings times √c, gains stored as their distance from 1."""
    refuse_unless(c, use_bidirectional_attention=(None, False))
    norm = Norm(kind="rms", eps=c.rms_norm_eps)
    embed = {"multiplier": c.hidden_size**0.5}
    trunk = decoder(c, mixer=FullAttention(), norm=norm, embed=embed, frame={"positions": rope(c)})
    layer = ATTENTION | FEEDFORWARD | _distances(NORMS)
    output = Linear(logit_scale=1.0)
    return with_head(c, head, trunk, layer, norm=plus_one("norm"), output=output)


GEMMA3_NORMS = {
    "stack.sublayers.{s}.norm": "layers.{i}.input_layernorm",
    "stack.sublayers.{s}.last_norm": "layers.{i}.post_attention_layernorm",
    "stack.sublayers.{f}.norm": "layers.{i}.pre_feedforward_layernorm",
    "stack.sublayers.{f}.last_norm": "layers.{i}.post_feedforward_layernorm",
    "stack.sublayers.{s}.body.project.q_norm": "layers.{i}.self_attn.q_norm",
    "stack.sublayers.{s}.body.project.k_norm": "layers.{i}.self_attn.k_norm",
}


@reads("gemma3_text", heads=HEADS, note="text models; pictures are not read")
def gemma3(c: Any, head: str) -> Import:
    """Gemma 3's text model."""
    refuse_unless(c, attn_logit_softcapping=None, use_bidirectional_attention=(None, False))
    norm = Norm(kind="rms", place="both", eps=c.rms_norm_eps)
    heads = DenseProjection(
        head_norm=Norm(kind="rms", eps=c.rms_norm_eps),
        query_scale=(c.head_dim / c.query_pre_attn_scalar) ** 0.5,
    )
    trunk = decoder(
        c,
        mixer=windowed(c),
        norm=norm,
        embed={"multiplier": c.hidden_size**0.5},
        frame={"projection": heads},
        layer_positions=tuple(rope(c, each) for each in c.layer_types),
    )
    output = Linear(logit_scale=1.0, softcap=c.final_logit_softcapping)
    layer = ATTENTION | FEEDFORWARD | _distances(GEMMA3_NORMS)
    return with_head(c, head, trunk, layer, norm=plus_one("norm"), output=output)


def _distances(norms: Any) -> Rows:
    """Norms whose gains are stored as their distance from 1."""
    return {f"{name}.weight": plus_one(f"{source}.weight") for name, source in norms.items()}
