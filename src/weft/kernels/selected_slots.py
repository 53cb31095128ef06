"""Causal attention to slots: query i reads the slots whose last token is not after it.

A slot stands where its last token stands, so this is the causal pattern over some of the positions,
and the block-sparse kernels run it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from torch import Tensor

from weft.kernels.block_sparse import block_sparse_part
from weft.patterns import Causal, Order
from weft.patterns.lower import Part
from weft.patterns.order import select

BLOCK = 128  # queries and slots that the kernels take at a time


def attend_slots(
    q: Tensor, k: Tensor, v: Tensor, *, span: int, stride: int, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """q (b, h, n, d), slots (b, g, s, d) -> values (b, h, n, d), log-sum-exp (b, h, n).

    Slot t holds the tokens from t · stride to t · stride + span − 1. A query that has no slot to
    read yet returns 0 and −inf.
    """
    part = _ended(q.shape[2], k.shape[2], span, stride)
    scale = q.shape[-1] ** -0.5
    return block_sparse_part(q, k, v, part, block=BLOCK, scale=scale, labels=None, dropout=dropout)


@lru_cache(maxsize=64)
def _ended(n: int, slots: int, span: int, stride: int) -> Part:
    return Part(Causal(), Order(n), select(np.arange(slots) * stride + span - 1), n)
