"""The model file: the tables of a plan and the numbers of its tensors in one aligned buffer.

    folder/config.json     the torch model's config, precision, and where each tensor comes from
    folder/model.weft      header, tables, numbers, as `cpp/format.h` describes

The library maps `model.weft` into memory and checks every count, offset and shape in it before use.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.native import plan as slots
from weft.native.layout import LAYOUTS, from_panels, to_panels
from weft.native.plan import ATTENTION, NativePlan, NativeSublayer, StoredTensor
from weft.native.precision import DTYPES, WIDTHS, quantise

MAGIC = b"WEFTNAT1"
HEADER = struct.Struct("<8sQQ12I10i4d")
TENSOR = struct.Struct("<IIQQQQ")
SUBLAYER = struct.Struct(f"<II{slots.SUBLAYER_TENSORS}i{slots.SUBLAYER_NUMBERS}q")
_ALIGNMENT = 64
COUNTS = ("dim", "vocab", "positions", "rotation", "limit", "rms", "post", "reversible", "cache")


class FileOffsets:
    """Where each tensor of a file begins, its scales, and the size of the whole."""

    def __init__(self, stored: list[StoredTensor], sublayers: int) -> None:
        self.tables = HEADER.size + len(stored) * TENSOR.size + sublayers * SUBLAYER.size
        self.end = _aligned(self.tables)
        self.numbers: list[int] = []
        self.scales: list[int] = []
        for tensor in stored:
            self.numbers.append(self._take(tensor.rows * tensor.cols * WIDTHS[tensor.dtype]))
            self.scales.append(self._take(tensor.rows * 4) if tensor.dtype == "int8" else 0)

    def _take(self, size: int) -> int:
        start, self.end = self.end, _aligned(self.end + size)
        return start


def write(plan: NativePlan, buffer: Any, places: FileOffsets) -> None:
    """Fill a buffer of `places.end` bytes."""
    state = dict(plan.model.named_parameters(remove_duplicate=False))
    for number, tensor in enumerate(plan.stored):
        matrix = LAYOUTS[tensor.layout].pack([state[name].detach() for name in tensor.sources])
        _put(buffer, places, number, tensor, matrix)
    tables = _tables(plan, places)
    memoryview(buffer)[: len(tables)] = tables


@torch.no_grad()
def _put(
    buffer: Any, places: FileOffsets, number: int, tensor: StoredTensor, matrix: Tensor
) -> None:
    matrix = matrix.float()
    if tensor.dtype == "int8":
        matrix, scales = quantise(matrix)
        _view(buffer, places.scales[number], torch.float32, scales.shape).copy_(scales)
    kind = getattr(torch, tensor.dtype)
    if tensor.panels:
        matrix = to_panels(matrix)
    _view(buffer, places.numbers[number], kind, matrix.shape).copy_(matrix)


def read(buffer: Any, places: FileOffsets, number: int, tensor: StoredTensor) -> list[Tensor]:
    """The parameters of a stored tensor as they are after rounding, in float32."""
    kind = getattr(torch, tensor.dtype)
    shape: tuple[int, ...] = (tensor.rows, tensor.cols)
    if tensor.panels:
        shape = (tensor.cols // 16, tensor.rows, 16)
    matrix = _copy(buffer, places.numbers[number], kind, shape).float()
    if tensor.panels:
        matrix = from_panels(matrix)
    if tensor.dtype == "int8":
        scales = _copy(buffer, places.scales[number], torch.float32, (tensor.rows,))
        matrix = matrix * scales[:, None]
    return LAYOUTS[tensor.layout].unpack(matrix, tensor.shapes)


def _view(buffer: Any, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    count = torch.Size(shape).numel()
    return torch.frombuffer(buffer, dtype=dtype, count=count, offset=offset).view(shape)


def _copy(buffer: Any, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """From a buffer that may be read-only."""
    count = torch.Size(shape).numel() * dtype.itemsize
    numbers = np.frombuffer(buffer, dtype=np.uint8, count=count, offset=offset).copy()
    return torch.from_numpy(numbers).view(dtype).view(shape)


def records(stored: Sequence[StoredTensor], places: FileOffsets) -> Iterator[tuple[int, ...]]:
    """What the table of tensors says: (dtype, panels, rows, cols, offset, scales) of each."""
    for tensor, at, scales in zip(stored, places.numbers, places.scales, strict=True):
        yield DTYPES[tensor.dtype], int(tensor.panels), tensor.rows, tensor.cols, at, scales


def _tables(plan: NativePlan, places: FileOffsets) -> bytes:
    body = b"".join(TENSOR.pack(*record) for record in records(plan.stored, places))
    body += b"".join(map(_sublayer, plan.parts))
    settings, ends = plan.settings, plan.ends
    counts = [settings.get(name, 0) for name in COUNTS]
    numbers = [ends.get(name, -1) for name in slots.END_TENSORS]
    reals = [
        settings["eps"],
        settings.get("rope_base", 1.0),
        settings["output_scale"],
        settings.get("sru_scale", 1.0),
    ]

    def header(checksum: int) -> bytes:
        tables = (len(plan.stored), len(plan.parts), *counts, settings["modules"])
        return HEADER.pack(MAGIC, checksum, places.end, *tables, *numbers, 0, *reals)

    return header(checksum(header(0)[16:] + body)) + body


def _sublayer(part: NativeSublayer) -> bytes:
    mixes = part.kind == ATTENTION
    tensors = slots.ATTENTION_TENSORS if mixes else slots.FEEDFORWARD_TENSORS
    numbers = slots.ATTENTION_NUMBERS if mixes else slots.FEEDFORWARD_NUMBERS
    chosen = [part.tensors.get(name, -1) for name in tensors]
    chosen += [-1] * (slots.SUBLAYER_TENSORS - len(chosen))
    values = [part.numbers.get(name, 0) for name in numbers]
    values += [0] * (slots.SUBLAYER_NUMBERS - len(values))
    return SUBLAYER.pack(part.kind, 0, *chosen, *values)


def checksum(data: bytes) -> int:
    """FNV-1a, 64 bits: finds a damaged header."""
    value = 1469598103934665603
    for byte in data:
        value = (value ^ byte) * 1099511628211 & 0xFFFFFFFFFFFFFFFF
    return value


def in_memory(size: int) -> mmap.mmap:
    """A buffer of this size, in huge pages where the system has them."""
    # Private: pages that could be shared with another process are never huge.
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if os.name == "posix" else {}
    buffer = mmap.mmap(-1, size, **private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer


def address(buffer: Any) -> int:
    """Where a buffer begins."""
    return np.frombuffer(buffer, dtype=np.uint8).ctypes.data


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
