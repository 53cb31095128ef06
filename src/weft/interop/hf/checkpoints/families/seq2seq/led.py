"""LED: BART whose encoder is Longformer's.

Beltagy et al. 2020, section 7, https://arxiv.org/abs/2004.05150. Global tokens of the source are
the mark `is_global`; without marks there are none, as in the published code.
"""

from __future__ import annotations

from typing import Any

from weft.interop.hf.checkpoints.families.longformer import windows
from weft.interop.hf.checkpoints.families.seq2seq.bart import (
    HEADS,
    model_of,
    reading,
    side_rows,
    stack,
)
from weft.interop.hf.checkpoints.names import Rows
from weft.interop.hf.checkpoints.registry import Import, reads
from weft.interop.hf.checkpoints.settings import refuse_unless
from weft.layers.norm import Norm
from weft.mixers import Longformer

_INSIDE, _THEIRS = "stack.sublayers.{s}", "layers.{i}.self_attn"
ATTENTION: Rows = {
    f"{_INSIDE}.body.project.to_out": f"{_THEIRS}.output",
    f"{_INSIDE}.norm": "layers.{i}.self_attn_layer_norm",
}
for _letter, _name in (("q", "query"), ("k", "key"), ("v", "value")):
    ATTENTION[f"{_INSIDE}.body.project.to_{_letter}"] = f"{_THEIRS}.longformer_self_attn.{_name}"
    ATTENTION[f"{_INSIDE}.body.to_{_letter}_global"] = (
        f"{_THEIRS}.longformer_self_attn.{_name}_global"
    )


@reads(
    "led",
    heads=HEADS,
    note="global tokens of the source by source_marks={'is_global': mask}",
)
def led(c: Any, head: str) -> Import:
    """LED."""
    refuse_unless(c, tie_word_embeddings=True)
    norm = Norm(place="post")
    mixer = Longformer(window=windows(c, c.encoder_layers), global_first=0)
    encoder = stack(c, "encoder", norm, c.max_encoder_position_embeddings, mixer=mixer)
    decoder = stack(c, "decoder", norm, c.max_decoder_position_embeddings)
    enters: Rows = {"norm": "layernorm_embedding"}
    sides = (
        side_rows(c, side, 0, attend) | enters
        for side, attend in (("encoder", ATTENTION), ("decoder", None))
    )
    return reading(c, head, model_of(c, head, encoder, decoder), *sides, prefix="led.")
