"""XLNet: relative positions of Transformer-XL, read both ways, norms after the sum.

Yang et al. 2019, https://arxiv.org/abs/1906.08237. This is the stream of contents, which is what
the model computes without a mask of permutations. Segments of a pair are not told apart: their
weights are left out.
"""

from __future__ import annotations

from typing import Any

from weft.feedforward import Dense
from weft.interop.hf.checkpoints.names import Names, Rows, Take, for_layers, under
from weft.interop.hf.checkpoints.registry import Import, reads
from weft.interop.hf.checkpoints.settings import activation, refuse_unless
from weft.layers.embedding import Embedding
from weft.layers.norm import Norm
from weft.layers.outputs import Linear
from weft.layers.projections.dense import DenseProjection
from weft.mixers import MIXERS, Frame
from weft.models import Encoder, LanguageModel, Stack

_INSIDE, _THEIRS = "stack.sublayers.{s}.body", "layer.{i}.rel_attn"


def _wide(name: str) -> Take:
    """A matrix (c, h, d) as (h · d, c)."""
    return Take((f"{_THEIRS}.{name}",), lambda w: w.flatten(1).t())


LAYER: Rows = {
    f"{_INSIDE}.project.to_q.weight": _wide("q"),
    f"{_INSIDE}.project.to_k.weight": _wide("k"),
    f"{_INSIDE}.project.to_v.weight": _wide("v"),
    f"{_INSIDE}.project.to_out.weight": Take((f"{_THEIRS}.o",), lambda w: w.flatten(1)),
    f"{_INSIDE}.to_r.weight": _wide("r"),
    f"{_INSIDE}.content_bias": f"{_THEIRS}.r_w_bias",
    f"{_INSIDE}.distance_bias": f"{_THEIRS}.r_r_bias",
    "stack.sublayers.{s}.norm": f"{_THEIRS}.layer_norm",
    "stack.sublayers.{f}.body.to_hidden": "layer.{i}.ff.layer_1",
    "stack.sublayers.{f}.body.to_out": "layer.{i}.ff.layer_2",
    "stack.sublayers.{f}.norm": "layer.{i}.ff.layer_norm",
}
LEFT_OUT = {
    "layer.*.rel_attn.seg_embed": "segments are not told apart",
    "layer.*.rel_attn.r_s_bias": "segments are not told apart",
    "mask_emb": "the second stream of pre-training",
}


@reads("xlnet", heads=("LMHead", "Model"), note="without segments and memory")
def xlnet(c: Any, head: str) -> Import:
    """XLNet."""
    refuse_unless(c, attn_type="bi", bi_data=False, clamp_len=-1, untie_r=True, same_length=False)
    trunk = Encoder(
        embedding=Embedding(vocab=c.vocab_size),
        stack=Stack(
            frame=Frame(
                dim=c.d_model,
                heads=c.n_head,
                head_dim=c.d_head,
                dropout=c.dropout,
                projection=DenseProjection(biases=""),
            ),
            order="sf",
            layers=c.n_layer,
            mixer=MIXERS.make("transformer_xl"),
            feedforward=Dense(activation=activation(c.ff_activation), hidden=c.d_inner),
            norm=Norm(place="post", eps=c.layer_norm_eps, enters=False),
            dropout=c.dropout,
        ),
    )
    rows: Rows = {"embedding.table": "word_embedding.weight"}
    rows |= for_layers(range(c.n_layer), "sf", LAYER)
    if head == "Model":
        return Import(trunk, Names(rows, "transformer.", {}, LEFT_OUT))
    tied = bool(c.tie_word_embeddings)
    rows = under("trunk.", rows) | {"output.bias": "lm_loss.bias"}
    rows |= {} if tied else {"head": "lm_loss.weight"}
    copies = {"lm_loss.weight": "word_embedding.weight"} if tied else {}
    output = Linear(logit_scale=1.0, logit_bias=True)
    model = LanguageModel(trunk=trunk, tied=tied, output=output)
    return Import(model, Names(rows, "transformer.", copies, LEFT_OUT))
