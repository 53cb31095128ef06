"""SDPA; also returns the log-sum-exp on a CPU, where torch exposes it."""

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from weft.kernels.dense.cpu import fused_attention
from weft.kernels.dense.reference import expand_heads

_USUAL = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_FAST = [SDPBackend.CUDNN_ATTENTION, *_USUAL]
_LARGE = 2048  # queries and keys from which cuDNN's planning pays


class SdpaSettings(Protocol):
    """The settings of a call."""

    @property
    def scale(self) -> float: ...
    @property
    def dropout(self) -> float: ...
    @property
    def lse(self) -> bool: ...


def torch_attention(
    q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, causal: bool, options: SdpaSettings
) -> tuple[Tensor, Tensor | None]:
    """Torch's fused attention; on a CPU also with the log-sum-exp."""
    if options.lse:
        k, v = expand_heads(k, q.shape[1]), expand_heads(v, q.shape[1])
        return fused_attention(q, k, v, added, options.scale, causal)
    # On a GPU cuDNN's kernel is the fastest dense one; it plans again for every shape.
    large = added is None and q.is_cuda and min(q.shape[2], k.shape[2]) >= _LARGE
    with sdpa_kernel(_FAST if large else _USUAL, set_priority=True):
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=added,
            dropout_p=options.dropout,
            is_causal=causal,
            scale=options.scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
    return out, None
