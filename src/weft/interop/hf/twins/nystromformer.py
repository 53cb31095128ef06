"""Nyströmformer: both attentions through landmarks by fused kernels; n × landmarks is not stored.

    out = softmax(q k̃ᵀ) · (softmax(q̃ k̃ᵀ)⁺ · (softmax(q̃ kᵀ) v)) + conv(v)

q̃ and k̃ are the means of equal segments, padding included, and ⁺ is Transformers' own iteration:
its start by the largest of the whole batch too. All but the two products with n tokens is theirs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.interop.hf.twins.lean import Twin
from weft.interop.hf.twins.registry import (
    Family,
    Pass,
    bert_like,
    forward_by,
    key_mask,
    refuse_maps,
    register,
)
from weft.kernels.attend.api import attend
from weft.layers.projections.dense import join_heads, side_by_side, split_heads
from weft.patterns import Full


class LandmarkTwin(Twin):
    """The forward of Nyströmformer's attention."""

    def __init__(self, theirs: Any, shared: Pass) -> None:
        self.theirs, self.shared = theirs, shared

    def __call__(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor]:
        """(b, n, c) -> (b, n, c), in a tuple."""
        refuse_maps(output_attentions)
        own, heads = self.theirs, self.theirs.num_attention_heads
        valid = key_mask(self.shared, attention_mask)
        maps = (own.query, own.key, own.value)
        q, k, v = (split_heads(y, heads) for y in side_by_side(hidden_states, maps))
        if own.num_landmarks == own.seq_len:
            out = attend(q, k, v, Full(), valid=valid)
        else:
            out = self._landmarks(q, k, v, valid)
        if own.conv_kernel_size is not None:
            out = out + own.conv(v)
        return (join_heads(out),)

    def _landmarks(self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None) -> Tensor:
        """(b, h, n, d) -> (b, h, n, d)."""
        own = self.theirs
        size = (own.num_landmarks, own.seq_len // own.num_landmarks)
        q_few, k_few = (x.unflatten(2, size).mean(3) for x in (q, k))  # (b, h, r, d)
        scale = q.shape[3] ** -0.5
        near = torch.softmax(q_few @ k_few.transpose(-1, -2) * scale, dim=-1)  # (b, h, r, r)
        asked = attend(q_few, k, v, Full(), valid=valid)
        asked = own.iterative_inv(near).to(v.dtype) @ asked
        return attend(q, k_few, asked, Full())


register(
    "nystromformer",
    Family(
        ("Nystromformer",),
        {"NystromformerSelfAttention": forward_by(LandmarkTwin)},
        around=bert_like("Nystromformer", "feed_forward_chunk"),
    ),
)
