"""Swin: the biases and masks of windows once for a batch, and what a layer stores reduced."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from weft.interop.hf.twins.lean import EncoderTwin, LayerTwin, Recomputed, Twin, activated
from weft.interop.hf.twins.registry import Family, Pass, forward_by, noted, refuse_maps, register
from weft.layers.projections.dense import join_heads, side_by_side, split_heads


class WindowsTwin(Twin):
    """The forward of Swin's attention in windows."""

    def __init__(self, theirs: Any, shared: Pass) -> None:
        self.theirs = theirs

    def __call__(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        output_attentions: bool = False,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """Windows (b·w, n, c) -> (b·w, n, c), and no attention maps."""
        refuse_maps(output_attentions)
        own, n = self.theirs, hidden_states.shape[1]
        maps = (own.q_proj, own.k_proj, own.v_proj)
        heads = [split_heads(y, own.num_attention_heads) for y in side_by_side(hidden_states, maps)]
        bias = own.relative_position_bias()  # (1, h, n, n)
        if attention_mask is not None:
            # Windows join the heads: their biases and masks are those of all pictures.
            windows = len(attention_mask)
            heads = [x.unflatten(0, (-1, windows)).flatten(1, 2) for x in heads]
            bias = (bias + attention_mask[:, None]).view(1, -1, n, n)  # (1, w·h, n, n)
        drop = own.attention_dropout if own.training else 0.0
        q, k, v = heads
        out = F.scaled_dot_product_attention(
            q, k, v, bias.to(q.dtype), dropout_p=drop, scale=own.scaling
        )
        if attention_mask is not None:
            out = out.unflatten(1, (-1, own.num_attention_heads)).flatten(0, 1)
        return own.o_proj(join_heads(out)), None


class SwinMLPTwin(Twin):
    """The feedforward sublayer, which stores its hidden units once."""

    def __init__(self, theirs: Any, notes: Recomputed) -> None:
        self.theirs = theirs

    def __call__(self, hidden_states: Tensor) -> Tensor:
        """(b, n, c) -> (b, n, c)."""
        own = self.theirs
        h, last = own.fc1(hidden_states), own.fc2
        return activated(h, own.activation_fn, last.weight, last.bias)


register(
    "swin",
    Family(
        ("Swin",),
        {"SwinAttention": forward_by(WindowsTwin)},
        around={
            "SwinMLP": noted(SwinMLPTwin),
            "SwinLayer": noted(LayerTwin),
            "SwinEncoder": noted(EncoderTwin),
        },
    ),
)
