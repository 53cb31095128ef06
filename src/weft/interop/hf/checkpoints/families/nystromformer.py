"""Nyströmformer: BERT with attention through landmarks, and a convolution over the values.

Xiong et al. 2021, https://arxiv.org/abs/2102.03902. With as many landmarks as the length of their
segments' text (`segment_means_seq_len`) the published code attends in full, at any length.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from weft.interop.hf.checkpoints.families.bert import (
    ATTENTION,
    BERT_COPIES,
    BERT_SCORES,
    BERT_TABLE,
    HEADS,
    body,
    encoder,
    with_head,
)
from weft.interop.hf.checkpoints.names import Rows, Take, rows_from
from weft.interop.hf.checkpoints.registry import Import, reads
from weft.interop.hf.checkpoints.settings import activation
from weft.mixers import MIXERS

_FIRST = 2  # rows of the table of positions that belong to padding
TAPS: Rows = {
    "stack.sublayers.{s}.body.taps": Take(
        ("encoder.layer.{i}.attention.self.conv.weight",), lambda kernel: kernel[:, 0, :, 0]
    )
}


def mixer(c: Any) -> Any:
    """The attention of every layer."""
    whole = c.num_landmarks == c.segment_means_seq_len
    return MIXERS.make(
        "nystromformer",
        landmarks=c.max_position_embeddings if whole else c.num_landmarks,
        kernel=c.conv_kernel_size or 0,
        shared_start=True,
    )


@reads(
    "nystromformer",
    heads=tuple(head for head in HEADS if head != "PreTraining"),
    note="Transformers' convolution and landmarks read padding, and its landmarks' inverse starts "
    "from the largest of a batch: equal for one text at a time",
)
def nystromformer(c: Any, head: str) -> Import:
    """Nyströmformer."""
    trunk = encoder(c)
    trunk = dataclasses.replace(trunk, stack=dataclasses.replace(trunk.stack, mixer=mixer(c)))
    taps = TAPS if c.conv_kernel_size else {}
    places = rows_from("embeddings.position_embeddings.weight", _FIRST)
    names: Any = {"scores": BERT_SCORES, "copies": BERT_COPIES, **BERT_TABLE}
    return with_head(
        c,
        head,
        trunk,
        body(c, ATTENTION | taps, places),
        prefix="nystromformer.",
        classes={"head.0": "classifier.dense", "head.2": "classifier.out_proj"},
        between=activation(c.hidden_act),
        **names,
    )
