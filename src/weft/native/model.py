"""Native models: a torch language model, written out for the C++ library.

    native = weft.native.compile(model)                          in memory
    weft.native.export(model, "folder", dtype="int8")            on disk
    native = weft.native.load("folder")

A native model has the interface of the torch one as far as decoding goes: `start`, `step`,
`next_scores`, `generate`, `stream`. Where the library cannot be built, the same names give a torch
model with the same rounded weights, slower, and a warning says so.
"""

from __future__ import annotations

import ctypes
import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weft.errors import WeftError
from weft.files import replacing_folder
from weft.generate import Decoding
from weft.models.saving import config_to_dict
from weft.native import file
from weft.native.describe import describe
from weft.native.header import check_description
from weft.native.library import available, call
from weft.native.precision import WeightPrecision
from weft.native.rebuilt import Description, rebuilt, warn_slow
from weft.native.state import NativeState

_WEIGHTS, _CONFIG = "model.weft", "config.json"


def export(
    model: nn.Module,
    folder: str | Path,
    *,
    dtype: str = WeightPrecision.weights,
    cache: str = WeightPrecision.cache,
    output: str | None = WeightPrecision.output,
    parts: dict[str, str] | None = None,
) -> Path:
    """Write a language model for native decoding; replaces one that was written before.

    `dtype` is the precision of the weights, `output` that of the matrix over the vocabulary,
    `parts` that of chosen parts (`{"*.feedforward.*": "int8"}`), `cache` that of keys and values.
    """
    plan = describe(
        model, WeightPrecision(weights=dtype, cache=cache, output=output, parts=parts or {})
    )
    folder = Path(folder)
    with replacing_folder(folder, {_WEIGHTS, _CONFIG}, "a native model") as new:
        places = file.FileOffsets(plan.stored, len(plan.parts))
        buffer = np.memmap(new / _WEIGHTS, dtype=np.uint8, mode="w+", shape=(places.end,))
        file.write(plan, buffer, places)
        buffer.flush()
        description = Description.of(plan, config_to_dict(model.config))
        (new / _CONFIG).write_text(json.dumps(description.to_dict(), indent=1) + "\n")
    return folder


def compile(
    model: nn.Module,
    *,
    dtype: str = WeightPrecision.weights,
    cache: str = WeightPrecision.cache,
    output: str | None = WeightPrecision.output,
    parts: dict[str, str] | None = None,
) -> NativeModel | nn.Module:
    """A native model in memory; see `export` for the settings."""
    plan = describe(
        model, WeightPrecision(weights=dtype, cache=cache, output=output, parts=parts or {})
    )
    description = Description.of(plan, config_to_dict(model.config))
    places = file.FileOffsets(plan.stored, len(plan.parts))
    buffer = file.in_memory(places.end)
    file.write(plan, buffer, places)
    return _ready(description, buffer, places.end)


def load(folder: str | Path) -> NativeModel | nn.Module:
    """The model that `export` wrote, mapped into memory."""
    folder = Path(folder)
    for name in (_CONFIG, _WEIGHTS):
        if not (folder / name).is_file():
            raise WeftError(f"{folder} is not a native model: it has no {name}")
    description = Description.read(folder / _CONFIG)
    size = (folder / _WEIGHTS).stat().st_size
    if not size:
        raise WeftError(f"{folder / _WEIGHTS} is not a model file: it is empty")
    return _ready(description, np.memmap(folder / _WEIGHTS, dtype=np.uint8, mode="r"), size)


def _ready(description: Description, buffer: Any, size: int) -> NativeModel | nn.Module:
    check_description(description, buffer, size)
    reason = available()
    if reason is None:
        return NativeModel(description, buffer, size)
    warn_slow(reason)
    return rebuilt(description, buffer, size)


class NativeModel(Decoding):
    """A language model inside the library."""

    device = torch.device("cpu")

    def __init__(self, description: Description, buffer: Any, size: int) -> None:
        self.description, self.buffer, self.size = description, buffer, size
        self.handle = ctypes.c_void_p()
        call("load", file.address(buffer), size, ctypes.byref(self.handle))
        weakref.finalize(self, call, "unload", self.handle)
        self.vocab = int(call("vocab", self.handle))  # sizes buffers, so the checked file says it
        self._scratch = torch.empty(0, self.vocab)
        self._counting = np.arange(0, dtype=np.int32)

    def start(self, batch: int = 1) -> NativeState:
        """The state before the first token."""
        handle = ctypes.c_void_p()
        if batch < 1:
            raise WeftError(f"a batch has at least 1 row; got {batch}")
        call("start", self.handle, batch, ctypes.byref(handle))
        return NativeState(self, handle, batch)

    def step(self, ids: Tensor, state: NativeState) -> tuple[Tensor, NativeState]:
        """New ids (b, n) -> scores (b, n, vocab), and the next state; the old one is consumed."""
        return state.feed(_rows(ids, state), every=True), state

    def next_scores(self, ids: Tensor, state: NativeState) -> tuple[Tensor, NativeState]:
        """New ids (b, n) -> scores (b, vocab) after the last of them, and the next state."""
        return state.feed(_rows(ids, state)), state

    def check_prompt(self, ids: Tensor, tokens: int) -> None:
        """Refuse ids outside the vocabulary, and more tokens than there are positions."""
        low, high = (int(ids.min()), int(ids.max())) if ids.numel() else (0, 0)
        if low < 0 or high >= self.vocab:
            raise WeftError(
                f"ids run from 0 to vocab − 1 = {self.vocab - 1}; got {low if low < 0 else high}"
            )
        self.check_length(tokens)

    def check_length(self, tokens: int) -> None:
        """Refuse a sequence longer than the learned positions."""
        limit = self.description.limit
        if limit and tokens > limit:
            raise WeftError(
                f"the sequence has {tokens} tokens, but there are learned positions for {limit}; "
                "shorten it, or build with a larger Frame(length=...)"
            )

    def as_torch(self) -> nn.Module:
        """The torch model with the same rounded weights, in float32."""
        return rebuilt(self.description, self.buffer, self.size)

    def parts(self) -> dict[str, dict[str, Any]]:
        """Every stored tensor: its precision, shape and bytes."""
        return {
            tensor.name: {
                "dtype": tensor.dtype,
                "shape": (tensor.rows, tensor.cols),
                "bytes": tensor.bytes,
            }
            for tensor in self.description.stored
        }

    def scratch(self, rows: int) -> Tensor:
        """A buffer for unused scores, (rows, vocab)."""
        if len(self._scratch) < rows:
            self._scratch = torch.empty(rows, self.vocab)
        return self._scratch

    def counting(self, rows: int) -> np.ndarray:
        """0, 1, 2 … rows − 1."""
        if len(self._counting) < rows:
            self._counting = np.arange(rows, dtype=np.int32)
        return self._counting


def _rows(ids: Tensor, state: NativeState) -> list[list[int]]:
    if ids.dim() != 2 or ids.shape[0] != state.rows or not ids.shape[1] or ids.is_floating_point():
        raise WeftError(
            f"new ids are integers (batch, tokens) with batch = {state.rows} and at least one "
            f"token; got {ids.dtype} {tuple(ids.shape)}"
        )
    return ids.tolist()
