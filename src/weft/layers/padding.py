"""Padding, handled once: any pattern of padding becomes padding on the right, and back.

A mechanism that measures distance by index would see padding inside a sequence as distance. So
real tokens move to the front of their row (in order), the mechanism runs, and results move back:
padding left, right or inside changes nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor


def left_align(x: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(b, n, ...), (b, n) -> x with real tokens first, its validity, and the order (b, n) taken."""
    order = (~valid).to(torch.uint8).argsort(dim=1, stable=True)  # (b, n)
    return take(x, order), valid.gather(1, order), order


def restore(y: Tensor, order: Tensor, valid: Tensor) -> Tensor:
    """Undo `left_align`; padded positions become 0."""
    return take(y, order.argsort(dim=1)).masked_fill(~valid[..., None], 0.0)  # (b, n, c)


def take(x: Tensor, index: Tensor) -> Tensor:
    """Places of x (b, n) or (b, n, c) at index (b, m): (b, m) or (b, m, c)."""
    return x.gather(1, index if x.dim() == 2 else index[..., None].expand(-1, -1, x.shape[-1]))
