"""Tensors that grow token by token, without a copy of the whole at every step."""

from __future__ import annotations

import torch
from torch import Tensor


def append(room: Tensor | None, held: Tensor, new: Tensor) -> tuple[Tensor, Tensor | None]:
    """held (b, g, m, d) followed by new (b, g, n, d): (b, g, m + n, d), and the buffer it is in.

    `room` (b, g, more, d) is the buffer that starts with `held`; its rest is unused. A full one is
    replaced by one with 25 % to spare. Where gradients are needed nothing is written in place.
    """
    if torch.is_grad_enabled() and (held.requires_grad or new.requires_grad):
        return torch.cat((held, new), dim=2), None
    count, total = held.shape[2], held.shape[2] + new.shape[2]
    if room is None or room.shape[2] < total or not _writable(room):
        size = (*held.shape[:2], total + total // 4 + 1, held.shape[3])
        room = held.new_empty(size, dtype=torch.promote_types(held.dtype, new.dtype))
        room[:, :, :count] = held
    room[:, :, count:total] = new
    return room[:, :, :total], room


def _writable(room: Tensor) -> bool:
    return torch.is_inference_mode_enabled() or not room.is_inference()
