"""What decoding remembers of one layer, whatever the layer is."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class State:
    """What a decoder remembers of one layer; subclasses add tensors whose first axis is batch."""

    position: int = 0  # tokens consumed so far
    # What the projections remember, where they read neighbours.
    memory: Tensor | None = field(default=None, kw_only=True)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by field name."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def size(self) -> int:
        """Numbers kept per batch row."""
        return sum(tensor[0].numel() for tensor in self.tensors().values())

    def select(self, rows: Tensor) -> State:
        """The state of these batch rows, in this order (for beams and finished rows)."""
        picked = {name: tensor[rows] for name, tensor in self.tensors().items()}
        return dataclasses.replace(self, **picked)
