"""The decoding state of linear attention: of constant size at any length."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weft.mixers.base import AttentionMixer, State


@dataclass(kw_only=True)
class SumsState(State):
    """The running sums S and z over f features."""

    values: Tensor  # (b, g, f, d)
    weights: Tensor  # (b, g, f)

    @classmethod
    def empty(cls, mixer: AttentionMixer, batch: int, features: int) -> SumsState:
        """Sums of nothing, in float32 or wider."""
        like, g, d = mixer.project.to_v.weight, mixer.frame.kv_heads, mixer.frame.head_dim
        work = torch.promote_types(like.dtype, torch.float32)
        return cls(
            values=like.new_zeros(batch, g, features, d, dtype=work),
            weights=like.new_zeros(batch, g, features, dtype=work),
            memory=mixer.project.start(batch),
        )
