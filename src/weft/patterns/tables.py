"""Tables that follow the index: numpy for the block calculus, torch on any device for kernels."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray


def on_device(table: NDArray[Any], like: Any) -> Any:
    """The table as a tensor on the device of `like`, or unchanged where `like` is not a tensor."""
    return torch.as_tensor(table, device=like.device) if isinstance(like, torch.Tensor) else table
