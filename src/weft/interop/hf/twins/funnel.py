"""Funnel: one matrix of added scores instead of every step of the softmax.

    scores = (q + u) kᵀ + (scores of distances + scores of segments)

The sum in brackets is Transformers' own; the product with the keys, the softmax and the values run
in torch's fused kernel, which stores none of them. Time remains O(n²).
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from weft.interop.hf.twins.lean import EncoderTwin, Recomputed, Twin, activated, norm
from weft.interop.hf.twins.registry import (
    Family,
    Pass,
    forward_by,
    noted,
    refuse_maps,
    register,
)
from weft.kernels.dropout_add import dropout_add
from weft.layers.projections.dense import join_heads, split_heads

_HIDDEN = -1e6  # what Transformers adds to the scores of padding


class RelativeTwin(Twin):
    """The forward of Funnel's attention, with its residual and norm."""

    def __init__(self, theirs: Any, shared: Pass) -> None:
        self.theirs, self.notes = theirs, shared.notes

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_inputs: tuple[Any, ...],
        output_attentions: bool = False,
    ) -> tuple[Tensor]:
        """Queries (b, n, c), keys and values (b, m, c) -> (b, n, c), in a tuple."""
        refuse_maps(output_attentions)
        own, (places, kinds, real, rest) = self.theirs, attention_inputs
        heads = own.config.n_head
        q = own.q_head(query).unflatten(-1, (heads, -1)) * own.scale  # (b, n, h, d)
        k, v = (split_heads(y, heads) for y in (own.k_head(key), own.v_head(value)))
        added = own.relative_positional_attention(places, q, k.shape[2], rest)  # (b, h, n, m)
        added = added + own.relative_token_type_attention(kinds, q, rest)
        if real is not None:
            added = added + _HIDDEN * (1 - real[:, None, None].to(added.dtype))
        q = (q + own.r_w_bias * own.scale).transpose(1, 2)
        drop = own.attention_dropout.p if own.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, added, dropout_p=drop, scale=1.0)
        y = own.post_proj(join_heads(out))
        z = dropout_add(y, query, own.hidden_dropout.p, own.training)
        return (norm(self.notes, own.layer_norm, z),)


class FunnelFFNTwin(Twin):
    """The feedforward sublayer, which stores its hidden units once."""

    def __init__(self, theirs: Any, notes: Recomputed) -> None:
        self.theirs, self.notes = theirs, notes

    def __call__(self, hidden: Tensor) -> Tensor:
        """(b, n, c) -> (b, n, c)."""
        own, last = self.theirs, self.theirs.linear_2
        h = own.linear_1(hidden)
        if own.training and own.activation_dropout.p:
            y = last(own.activation_dropout(own.activation_function(h)))
        else:
            y = activated(h, own.activation_function, last.weight, last.bias)
        z = dropout_add(y, hidden, own.dropout.p, own.training)
        out = norm(self.notes, own.layer_norm, z)
        self.notes.forget(out)
        return out


register(
    "funnel",
    Family(
        ("Funnel",),
        {"FunnelRelMultiheadAttention": forward_by(RelativeTwin)},
        around={
            "FunnelPositionwiseFFN": noted(FunnelFFNTwin),
            "FunnelEncoder": noted(EncoderTwin),
            "FunnelDecoder": noted(EncoderTwin),
        },
    ),
)
