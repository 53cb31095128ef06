"""Recurrent mixers: a cell that runs along the sequence, in one direction or in both.

    causal:   out = W_out [y_1 ... y_n],  y of a cell from left to right
    both ways: the outputs of two cells, one from either end, concatenated, then W_out

Padding comes after the real tokens and is never reached from the left; the cell from the right
starts at the last real token of each row. A cell is a module with

    forward(x, memory) -> y, memory      tokens (b, n, c) in one call, from `memory` on
    start(batch) -> memory               a tuple of tensors whose first axis is batch
    plain(x, memory) -> y, memory        one token (b, c), from the equation

Heads and dropout of the frame are unused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from weft.layers.padding import take
from weft.mixers.base import Frame, Mixer, State, Traits

Memory = tuple[Tensor, ...]


@dataclass
class RecurrentState(State):
    """What the cell remembers."""

    cell: Memory = ()

    def tensors(self) -> dict[str, Tensor]:
        return {f"memory{a}": part for a, part in enumerate(self.cell)}

    def select(self, rows: Tensor) -> RecurrentState:
        return RecurrentState(self.position, tuple(part[rows] for part in self.cell))


def recurrent_traits(paper: str, *, state: str, graph: str) -> Traits:
    """The traits of a cell with matrices of channels; `graph`: why it is not part of one."""
    return Traits(
        family="recurrence",
        paper=paper,
        time="n c²",
        memory="n c",
        context_parallel="the state of the rank before, in turn",
        state=state,
        causal=True,
        compiles=False,
        note=f"a recurrence runs along one sequence; {graph}",
        tensor="its states are channels of the model, not heads",
    )


class RecurrentCell(nn.Module):
    """A recurrence of `dim` channels."""

    def forward(self, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Tokens (b, n, c) -> (b, n, c), and the memory after them."""
        raise NotImplementedError(f"{type(self).__name__} has to define forward")

    def start(self, batch: int) -> Memory:
        """The memory before the first token."""
        raise NotImplementedError(f"{type(self).__name__} has to define start")

    def plain(self, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """One token (b, c) -> (b, c), and the memory after it, written from the equation."""
        raise NotImplementedError(f"{type(self).__name__} has to define plain")


class RecurrentMixer(Mixer):
    """One or two cells and a projection; `config.cell(frame)` makes a cell."""

    outside_graphs = True

    def __init__(self, config: Any, frame: Frame) -> None:
        super().__init__(config, frame)
        self.refuse_positions(f"{config.name} knows the order of tokens by itself")
        self.refuse_groups()
        count = 1 if frame.causal else 2
        self.cells = nn.ModuleList(config.cell(frame) for _ in range(count))
        self.to_out = nn.Linear(count * frame.dim, frame.dim, bias=frame.bias)

    def mix(
        self,
        x: Tensor,
        valid: Tensor | None,
        context: Tensor | None,
        context_valid: Tensor | None,
    ) -> Tensor:
        """From the left, and from the right."""
        y = [self._run(self._cell(0), x)]
        if len(self.cells) > 1:
            order = _reversed(x, valid)
            y.append(take(self._run(self._cell(1), take(x, order)), order))
        return self.to_out(torch.cat(y, dim=-1))

    def _cell(self, direction: int) -> RecurrentCell:
        return cast(RecurrentCell, self.cells[direction])

    def _run(self, cell: RecurrentCell, x: Tensor) -> Tensor:
        return cell(x, cell.start(x.shape[0]))[0]

    def reference(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
    ) -> Tensor:
        """Token by token; from the right, each row is reversed explicitly."""
        sides = [self._plain(self._cell(0), x)]
        if len(self.cells) > 1:
            y = _reverse_rows(self._plain(self._cell(1), _reverse_rows(x, valid)), valid)
            sides.append(y)
        return self.to_out(torch.cat(sides, dim=-1))

    def _plain(self, cell: RecurrentCell, x: Tensor) -> Tensor:
        """(b, n, c) from left to right, from the equation."""
        memory, outputs = cell.start(len(x)), []
        for t in range(x.shape[1]):
            y, memory = cell.plain(x[:, t], memory)
            outputs.append(y)
        return torch.stack(outputs, dim=1).to(x.dtype)

    def start(self, batch: int = 1) -> RecurrentState:
        """The memory before the first token."""
        self._need_causal()
        return RecurrentState(0, self._cell(0).start(batch))

    def step(self, x: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """Run on from the memory."""
        self._need_causal()
        y, memory = self.cells[0](x, state.cell)
        return self.to_out(y), RecurrentState(state.position + x.shape[1], memory)

    def state_size(self, tokens: int) -> int:
        """The same at any length."""
        self._need_causal()
        return sum(part[0].numel() for part in self._cell(0).start(1))


def _reverse_rows(x: Tensor, valid: Tensor | None) -> Tensor:
    """Each row (n, c) with its real tokens, which stand first, in the opposite order."""
    lengths = [x.shape[1]] * len(x) if valid is None else valid.sum(1).tolist()
    rows = zip(x, lengths, strict=True)
    return torch.stack([torch.cat((row[:n].flip(0), row[n:])) for row, n in rows])


def _reversed(x: Tensor, valid: Tensor | None) -> Tensor:
    """The order (b, n) that reverses the real tokens of each row; it is its own inverse."""
    index = torch.arange(x.shape[1], device=x.device)
    if valid is None:
        return index.flip(0).expand(x.shape[0], -1)
    length = valid.sum(1, keepdim=True)
    return torch.where(index < length, length - 1 - index, index)
