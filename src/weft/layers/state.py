"""The decoding state of one layer."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Self

from torch import Tensor


@dataclass
class State:
    """Decoding state of one layer; subclasses add tensors whose first axis is the batch."""

    position: int = 0  # tokens consumed so far
    # Of the projections, where they read neighbouring tokens.
    memory: Tensor | None = field(default=None, kw_only=True)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by field name."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def size(self) -> int:
        """Numbers stored per batch row."""
        return sum(tensor[0].numel() for tensor in self.tensors().values())

    def select(self, rows: Tensor) -> Self:
        """The state of these batch rows, in this order (for beams and finished rows)."""
        picked = {name: tensor[rows] for name, tensor in self.tensors().items()}
        return dataclasses.replace(self, **picked)
