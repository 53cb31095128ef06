"""Tensors that grow token by token, without copying at every step what is there already."""

from __future__ import annotations

import torch
from torch import Tensor


def append(room: Tensor | None, held: Tensor, new: Tensor) -> tuple[Tensor, Tensor | None]:
    """held (b, g, m, d) and behind it new (b, g, n, d): (b, g, m + n, d), and the room it is in.

    `room` (b, g, more, d) has `held` in front and nothing that counts behind it; a quarter more
    than is needed is taken when it is full. Where gradients are wanted nothing is written in place.
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
