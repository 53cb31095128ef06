"""Axial attention: a sequence laid out as a picture, attended along rows and along columns.

    out_i = sum over the two axes of attention within the line of i along that axis

Each axis has projections of its own; the outputs are added. Two layers connect any two pixels.
The sequence is read in raster order, `width` tokens a row; the last row may be short.
Time O(n √n c), memory O(n √n). Decoding keeps the open row for the rows and every key for the
columns.

Paper: Ho et al. 2019, section 3, https://arxiv.org/abs/1912.12180
Differs from it: causality is raster order in both axes; the paper's split into an inner and an
outer decoder for semi-parallel sampling is a matter of the model around it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from weft.mixers.base import MIXERS, Frame, Mixer, State, Traits
from weft.mixers.base.under_pattern import KeyValueState, PatternAttention, pattern_traits
from weft.patterns import Axis, Causal, Pattern


@MIXERS.register("axial")
@dataclass(frozen=True, kw_only=True)
class Axial:
    """Attention along the rows and columns of a picture."""

    width: int = 32  # tokens in a row

    traits: ClassVar[Traits] = pattern_traits(
        "Ho et al. 2019, https://arxiv.org/abs/1912.12180",
        time="n √n c",
        memory="n √n",
        context_parallel="keys of the rows that borders cut; of columns, those of all ranks in "
        "turn",
        state="2·g·d·(n + width)",
        pair="lines pair",
        marks=(),
    )

    def __post_init__(self) -> None:
        self.lines(causal=False)

    def lines(self, causal: bool) -> tuple[Pattern, Pattern]:
        """Along the row, and along the column."""
        row, column = Axis(self.width, "x"), Axis(self.width, "y")
        return (Causal() & row, Causal() & column) if causal else (row, column)

    def build(self, frame: Frame) -> AxialAttention:
        return AxialAttention(self, frame)

    @classmethod
    def variants(cls) -> tuple[Axial, ...]:
        """Settings that the contract suite tests."""
        return (cls(width=8),)


@dataclass(kw_only=True)
class AxialState(State):
    """The states of both axes."""

    row: KeyValueState
    column: KeyValueState

    def tensors(self) -> dict[str, Tensor]:
        parts = {"row": self.row, "column": self.column}
        return {f"{a}.{b}": t for a, part in parts.items() for b, t in part.tensors().items()}

    def select(self, rows: Tensor) -> AxialState:
        row, column = self.row.select(rows), self.column.select(rows)
        return AxialState(position=self.position, row=row, column=column)


class AxialAttention(Mixer):
    """One attention per axis, added."""

    def __init__(self, config: Axial, frame: Frame) -> None:
        super().__init__(config, frame)
        lines = config.lines(frame.causal)
        self.axes = nn.ModuleList(PatternAttention(config, frame, line) for line in lines)

    @property
    def _row(self) -> PatternAttention:
        return cast(PatternAttention, self.axes[0])

    @property
    def _column(self) -> PatternAttention:
        return cast(PatternAttention, self.axes[1])

    def mix(
        self,
        x: Tensor,
        valid: Tensor | None,
        context: Tensor | None,
        context_valid: Tensor | None,
    ) -> Tensor:
        """The sum over the axes."""
        return self._row.mix(x, valid, None, None) + self._column.mix(x, valid, None, None)

    def reference(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
    ) -> Tensor:
        """The sum over the axes, each from the equation."""
        axes = self._row, self._column
        return torch.stack([axis.reference(x, valid) for axis in axes]).sum(0)

    def start(self, batch: int = 1) -> AxialState:
        """Both axes start empty."""
        return AxialState(row=self._row.start(batch), column=self._column.start(batch))

    def step(self, x: Tensor, state: AxialState) -> tuple[Tensor, AxialState]:
        """Step along both axes."""
        row, row_state = self._row.step(x, state.row)
        column, column_state = self._column.step(x, state.column)
        position = row_state.position
        return row + column, AxialState(position=position, row=row_state, column=column_state)

    def state_size(self, tokens: int) -> int:
        """The numbers of both axes."""
        return self._row.state_size(tokens) + self._column.state_size(tokens)
