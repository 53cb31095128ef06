"""GPT-2: a decoder with norms before its sublayers; matrices lie with inputs as rows.

Radford et al. 2019, "Language models are unsupervised multitask learners"
"""

from __future__ import annotations

from typing import Any

from weft.feedforward import Dense
from weft.interop.hf.checkpoints.names import Names, Rows, for_layers, part, turned, under
from weft.interop.hf.checkpoints.registry import Import, reads
from weft.interop.hf.checkpoints.settings import activation, refuse_unless
from weft.layers.embedding import Embedding
from weft.layers.norm import Norm
from weft.layers.outputs import Linear
from weft.mixers import Frame
from weft.models import Decoder, LanguageModel, Stack

_ATTENTION = "h.{i}.attn.c_attn"
LAYER: Rows = {
    "stack.sublayers.{s}.norm": "h.{i}.ln_1",
    "stack.sublayers.{s}.body.project.to_q": part(_ATTENTION, 0, 3, turned=True),
    "stack.sublayers.{s}.body.project.to_k": part(_ATTENTION, 1, 3, turned=True),
    "stack.sublayers.{s}.body.project.to_v": part(_ATTENTION, 2, 3, turned=True),
    "stack.sublayers.{s}.body.project.to_out": turned("h.{i}.attn.c_proj"),
    "stack.sublayers.{f}.norm": "h.{i}.ln_2",
    "stack.sublayers.{f}.body.to_hidden": turned("h.{i}.mlp.c_fc"),
    "stack.sublayers.{f}.body.to_out": turned("h.{i}.mlp.c_proj"),
}
BODY: Rows = {
    "embedding.table": "wte.weight",
    "embedding.positions": "wpe.weight",
    "stack.norm": "ln_f",
}
LEFT_OUT = {
    "h.*.attn.bias": "the causal mask as a buffer",
    "h.*.attn.masked_bias": "a constant of the mask",
}


@reads("gpt2", heads=("LMHead", "Model"))
def gpt2(c: Any, head: str) -> Import:
    """GPT-2."""
    refuse_unless(
        c, scale_attn_by_inverse_layer_idx=False, scale_attn_weights=True, add_cross_attention=False
    )
    trunk = Decoder(
        embedding=Embedding(vocab=c.vocab_size, positions="learned"),
        stack=Stack(
            frame=Frame(dim=c.n_embd, heads=c.n_head, length=c.n_positions, dropout=c.attn_pdrop),
            order="sf",
            layers=c.n_layer,
            feedforward=Dense(
                activation=activation(c.activation_function), hidden=c.n_inner or 4 * c.n_embd
            ),
            norm=Norm(eps=c.layer_norm_epsilon),
            dropout=c.resid_pdrop,
        ),
    )
    rows = BODY | for_layers(range(c.n_layer), "sf", LAYER)
    prefix = "transformer."
    if head == "Model":
        return Import(trunk, Names(rows, prefix, {}, LEFT_OUT))
    tied = c.tie_word_embeddings
    rows = under("trunk.", rows) | ({} if tied else {"head": "lm_head.weight"})
    copies = {"lm_head.weight": "wte.weight"} if tied else {}
    model = LanguageModel(trunk=trunk, tied=tied, output=Linear(logit_scale=1.0))
    return Import(model, Names(rows, prefix, copies, LEFT_OUT))
