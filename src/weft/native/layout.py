"""How parameters are laid out in a model file, and the conversion back.

A stored tensor is a matrix of rows made from one or several parameters:

    rows      parameters concatenated by rows                  vector   all in one row
    columns   one parameter, transposed                        panels   (inputs, outputs) in panels
    taps      convolutions (out, in, length, width) as (length · width · in, out), concatenated

Panels: groups of 16 columns, each stored as (rows, 16), the last padded with zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

PANEL = 16
Shape = tuple[int, ...]


@dataclass(frozen=True)
class MatrixLayout:
    """Parameters -> a matrix, and back to parameters of these shapes."""

    pack: Callable[[Sequence[Tensor]], Tensor]
    unpack: Callable[[Tensor, Sequence[Shape]], list[Tensor]]
    panels: bool = False


def _rows(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts)) if len(parts) > 1 else parts[0]


def _vector(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in parts])[None]


def _unpack_vector(matrix: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
    sizes = [torch.Size(shape).numel() for shape in shapes]
    return [part.view(s) for part, s in zip(matrix[0].split(sizes), shapes, strict=True)]


def _filled(matrix: Tensor) -> Tensor:
    """Pad the columns to whole panels."""
    return F.pad(matrix, (0, -matrix.shape[1] % PANEL))


def _taps(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([_filled(p.permute(2, 3, 1, 0).flatten(0, 2)) for p in parts], dim=1)


def _unpack_taps(matrix: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
    found, start = [], 0
    for outputs, inputs, length, width in shapes:
        part = matrix[:, start : start + outputs]  # (length · width · in, out)
        found.append(part.unflatten(0, (length, width, inputs)).permute(3, 2, 0, 1))
        start += outputs + -outputs % PANEL
    return found


LAYOUTS = {
    "rows": MatrixLayout(_rows, lambda m, shapes: list(m.split([shape[0] for shape in shapes]))),
    "columns": MatrixLayout(lambda parts: parts[0].t(), lambda m, _: [m.t()]),
    "vector": MatrixLayout(_vector, _unpack_vector),
    "panels": MatrixLayout(
        lambda parts: _filled(parts[0]), lambda m, shapes: [m[:, : shapes[0][1]]], panels=True
    ),
    "taps": MatrixLayout(_taps, _unpack_taps, panels=True),
}


def to_panels(matrix: Tensor) -> Tensor:
    """(rows, columns) -> (panels, rows, 16)."""
    return matrix.unflatten(1, (-1, PANEL)).transpose(0, 1)


def from_panels(panels: Tensor) -> Tensor:
    """(panels, rows, 16) -> (rows, columns)."""
    return panels.transpose(0, 1).flatten(1)
