"""The decoding state of mixers that compress blocks of tokens into slots."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from weft.mixers.base import State


@dataclass(kw_only=True)
class SlotState(State):
    """Finished slots, and the tokens of the open block."""

    slots_k: Tensor  # (b, g, s, d)
    slots_v: Tensor  # (b, g, s, d)
    open_k: Tensor  # (b, g, t, d)
    open_v: Tensor  # (b, g, t, d)
