"""The decoding state of mixers that compress blocks of tokens into slots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.mixers.base import Frame, State

Compress = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # whole blocks to slots


@dataclass(kw_only=True)
class SlotState(State):
    """Finished slots, and the tokens of the open block."""

    slots_k: Tensor  # (b, g, s, d)
    slots_v: Tensor  # (b, g, s, d)
    open_k: Tensor  # (b, g, t, d)
    open_v: Tensor  # (b, g, t, d)

    def extend(
        self, k: Tensor, v: Tensor, width: int, compress: Compress, **rest: Any
    ) -> tuple[SlotState, Tensor, Tensor]:
        """The state after new keys and values (b, g, n, d), and those with the open block's."""
        position = self.position + k.shape[2]
        k, v = torch.cat((self.open_k, k), dim=2), torch.cat((self.open_v, v), dim=2)
        end = k.shape[2] - k.shape[2] % width
        new_k, new_v = compress(k[:, :, :end], v[:, :, :end])
        after = SlotState(
            position=position,
            slots_k=torch.cat((self.slots_k, new_k), dim=2),
            slots_v=torch.cat((self.slots_v, new_v), dim=2),
            open_k=k[:, :, end:].clone(),
            open_v=v[:, :, end:].clone(),
            **rest,
        )
        return after, k, v


def slot_numbers(frame: Frame, width: int, tokens: int) -> int:
    """Numbers that a state holds per row: whole blocks as slots, the rest as tokens."""
    return 2 * frame.kv_heads * frame.head_dim * (tokens // width + tokens % width)
