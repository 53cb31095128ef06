"""The decoding state of linear attention: of constant size at any length."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from weft.mixers.base import State


@dataclass(kw_only=True)
class SumsState(State):
    """The running sums S and z over f features."""

    values: Tensor  # (b, g, f, d)
    weights: Tensor  # (b, g, f)
