"""Additive score biases: a function of (head, i, j), evaluated where a kernel needs it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# bias(head, i, j): what is added to a score; the three index tensors broadcast.
Bias = Callable[[Tensor, Tensor, Tensor], Tensor]


def dense_bias(bias: Bias, heads: int, i: Tensor, j: Tensor) -> Tensor:
    """All heads at once: (h, *broadcast(i, j))."""
    head = torch.arange(heads, device=i.device)
    return bias(head.view(-1, *(1,) * max(i.dim(), j.dim())), i, j)
