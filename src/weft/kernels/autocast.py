"""What autocast does to operations here, and where it must do nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Inside, operators keep the dtypes they are given; meta tensors have no autocast."""
    kind = x.device.type
    return nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype that products of x have here: that of autocast, or its own."""
    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return x.dtype
    return torch.get_autocast_dtype(kind)
