"""LongT5 with local attention: T5 whose encoder reads a window.

Guo et al. 2021, section 3.1, https://arxiv.org/abs/2112.07916. A `local_radius` of 127 is
window=128 here.
"""

from __future__ import annotations

from typing import Any

from weft.errors import Unsupported
from weft.interop.hf.checkpoints.families.seq2seq.t5 import HEADS, read
from weft.interop.hf.checkpoints.registry import Import, reads
from weft.mixers import SlidingWindow


@reads("longt5", heads=HEADS, note="with local attention; transient global tokens are not read")
def longt5(c: Any, head: str) -> Import:
    """LongT5."""
    if c.encoder_attention_type != "local":
        raise Unsupported(
            "longt5 checkpoints are read with encoder_attention_type='local'; this one has "
            f"{c.encoder_attention_type!r}, whose sums over blocks no mixer of weft reads. In its "
            "place weft's etc and longformer have global tokens that are trained"
        )
    return read(c, head, SlidingWindow(window=c.local_radius + 1), "LocalSelfAttention")
