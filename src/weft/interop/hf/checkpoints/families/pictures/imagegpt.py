"""ImageGPT: GPT-2 over the colours of pixels, with RMS norms and a matrix of scores of its own.

Chen et al. 2020, https://openai.com/index/image-gpt/. Ids are colours; the last one is the start of
a picture, which is read and never predicted.
"""

from __future__ import annotations

from typing import Any

from weft.feedforward import Dense
from weft.interop.hf.checkpoints.families.gpt2 import BODY, LAYER, LEFT_OUT
from weft.interop.hf.checkpoints.names import Names, Rows, for_layers, under
from weft.interop.hf.checkpoints.registry import Import, reads
from weft.interop.hf.checkpoints.settings import activation, refuse_unless
from weft.layers.embedding import Embedding
from weft.layers.norm import Norm
from weft.layers.outputs import Linear
from weft.mixers import Frame
from weft.models import Decoder, LanguageModel, Stack


@reads(
    "imagegpt",
    heads=("CausalImageModeling", "Model"),
    note="reads colours as ids; the start of a picture, the last id, has the score −∞",
)
def imagegpt(c: Any, head: str) -> Import:
    """ImageGPT."""
    refuse_unless(
        c,
        scale_attn_by_inverse_layer_idx=False,
        scale_attn_weights=True,
        add_cross_attention=False,
        tie_word_embeddings=False,
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
            norm=Norm(kind="rms", eps=c.layer_norm_epsilon),
            dropout=c.resid_pdrop,
        ),
    )
    rows: Rows = BODY | for_layers(range(c.n_layer), "sf", LAYER)
    if head == "Model":
        return Import(trunk, Names(rows, "transformer.", {}, LEFT_OUT))
    rows = under("trunk.", rows) | {"head": "lm_head.weight"}
    model = LanguageModel(trunk=trunk, tied=False, output=Linear(unscored=1))
    return Import(model, Names(rows, "transformer.", {}, LEFT_OUT))
