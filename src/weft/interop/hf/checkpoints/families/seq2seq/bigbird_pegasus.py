"""BigBirdPegasus: an encoder-decoder with norms before its sublayers and BigBird's blocks.

Zaheer et al. 2020, section 4.2, https://arxiv.org/abs/2007.14062. Its norms named after the
embedding stand behind the last layers. The encoder reads as BigBird does (`families/big_bird.py`).
"""

from __future__ import annotations

from typing import Any

from weft.interop.hf.checkpoints.families.big_bird import NOTE, mixer
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

_THEIRS = "layers.{i}.self_attn"
ATTENTION: Rows = {
    "stack.sublayers.{s}.body.project.to_q": f"{_THEIRS}.self.query",
    "stack.sublayers.{s}.body.project.to_k": f"{_THEIRS}.self.key",
    "stack.sublayers.{s}.body.project.to_v": f"{_THEIRS}.self.value",
    "stack.sublayers.{s}.body.project.to_out": f"{_THEIRS}.output",
    "stack.sublayers.{s}.norm": "layers.{i}.self_attn_layer_norm",
}


@reads("bigbird_pegasus", heads=HEADS, note=NOTE)
def bigbird_pegasus(c: Any, head: str) -> Import:
    """BigBirdPegasus."""
    refuse_unless(c, tie_word_embeddings=True)
    norm, length = Norm(place="pre"), c.max_position_embeddings
    encoder = stack(c, "encoder", norm, length, mixer=mixer(c), bias=c.use_bias)
    decoder = stack(c, "decoder", norm, length, bias=c.use_bias)
    ends: Rows = {"stack.norm": "layernorm_embedding"}
    sides = (
        side_rows(c, side, 0, attend) | ends
        for side, attend in (("encoder", ATTENTION), ("decoder", None))
    )
    return reading(c, head, model_of(c, head, encoder, decoder), *sides)
