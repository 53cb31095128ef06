"""ImageGPT: causal attention without its n × n scores; norms and activations stored once."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from weft.interop.hf.twins.lean import EncoderTwin, LayerTwin, Recomputed, Twin, activated
from weft.interop.hf.twins.registry import (
    Family,
    Pass,
    forward_by,
    key_mask,
    noted,
    refuse_maps,
    register,
)
from weft.kernels.attend.api import attend
from weft.layers.projections.dense import join_heads, split_heads
from weft.patterns import Causal


class CausalTwin(Twin):
    """The forward of ImageGPT's self-attention; cross-attention remains theirs."""

    def __init__(self, theirs: Any, shared: Pass) -> None:
        self.theirs, self.shared = theirs, shared

    def __call__(
        self,
        hidden_states: Tensor,
        layer_past: Any = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        output_attentions: bool | None = False,
        **named: Any,
    ) -> tuple[Any, ...]:
        """(b, n, c) -> (b, n, c), and no attention maps."""
        own = self.theirs
        refuse_maps(output_attentions)
        if encoder_hidden_states is not None or own.is_cross_attention:
            given = (hidden_states, layer_past, attention_mask, encoder_hidden_states)
            return type(own).forward(own, *given, **named)
        parts = own.c_attn(hidden_states).split(own.split_size, dim=2)
        q, k, v = (split_heads(y, own.num_heads) for y in parts)
        if layer_past is not None:
            past = getattr(layer_past, "self_attention_cache", layer_past)
            k, v = past.update(k, v, own.layer_idx)
        scale = q.shape[3] ** -0.5 if own.scale_attn_weights else 1.0
        if own.scale_attn_by_inverse_layer_idx:
            scale /= own.layer_idx + 1
        drop = own.attn_dropout.p if own.training else 0.0
        valid = key_mask(self.shared, attention_mask)
        out = attend(q, k, v, Causal(), valid=valid, scale=scale, dropout=drop)
        return own.resid_dropout(own.c_proj(join_heads(out))), None


class NormTwin(Twin):
    """x / √(mean(x²) + ε) · g in one kernel."""

    def __init__(self, theirs: Any, notes: Recomputed) -> None:
        self.theirs, self.notes = theirs, notes

    def __call__(self, tensor: Tensor) -> Tensor:
        """(b, n, c) -> (b, n, c)."""
        weight, eps, stored = self.theirs.weight, self.theirs.eps, tensor.detach()
        out = F.rms_norm(tensor, weight.shape, weight, eps)
        if out.dtype != tensor.dtype:
            return out
        return self.notes.note(out, lambda: F.rms_norm(stored, weight.shape, weight, eps))


class ImageGPTMLPTwin(Twin):
    """The feedforward sublayer, which stores its hidden units once."""

    def __init__(self, theirs: Any, notes: Recomputed) -> None:
        self.theirs = theirs

    def __call__(self, hidden_states: Tensor) -> Tensor:
        """(b, n, c) -> (b, n, c)."""
        own = self.theirs
        h, last = own.c_fc(hidden_states), own.c_proj  # its matrices are (in, out)
        return own.dropout(activated(h, own.act, last.weight.t(), last.bias))


register(
    "imagegpt",
    Family(
        ("ImageGPT",),
        {"ImageGPTAttention": forward_by(CausalTwin)},
        around={
            "ImageGPTLayerNorm": noted(NormTwin),
            "ImageGPTMLP": noted(ImageGPTMLPTwin),
            "ImageGPTBlock": noted(LayerTwin),
            "ImageGPTModel": noted(EncoderTwin),
        },
    ),
)
