"""The plan of a native model: its settings, its sublayers, and the tensors they need.

The numbers and slots are those of `cpp/format.h`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from weft.native.layout import LAYOUTS
from weft.native.precision import WIDTHS, WeightPrecision

ATTENTION, FEEDFORWARD = 0, 1
SUBLAYER_TENSORS, SUBLAYER_NUMBERS = 20, 10
ATTENTION_TENSORS = (
    *("gain", "shift", "qkv", "qkv_bias", "modules", "mix", "mix_bias"),
    *("conv_qk", "conv_qk_bias", "conv_v", "conv_v_bias", "out", "out_bias"),
    *("k_modules", "k_mix", "k_mix_bias", "v_modules", "v_mix", "v_mix_bias"),
)
ATTENTION_NUMBERS = (
    *("heads", "kv_heads", "head_dim", "window", "sinks", "projection", "length", "span"),
)
FEEDFORWARD_TENSORS = (
    *("gain", "shift", "hidden", "hidden_bias", "gate", "gate_bias", "out", "out_bias"),
    *("low", "logits", "logits_bias", "sru_gain", "sru_shift", "sru_in", "sru_in_bias"),
    *("sru_gates", "sru_gates_bias", "sru_out", "sru_out_bias"),
)
FEEDFORWARD_NUMBERS = ("variant", "activation", "block", "sru")
END_TENSORS = (
    *("table", "places", "enter_gain", "enter_shift", "gain", "shift"),
    *("output", "output_modules", "output_bias"),
)


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of the file: the parameters it is made from, and its layout."""

    name: str
    layout: str
    dtype: str
    sources: tuple[str, ...]  # names of parameters
    shapes: tuple[tuple[int, ...], ...]
    rows: int
    cols: int

    @property
    def panels(self) -> bool:
        """Whether columns are stored in panels."""
        return LAYOUTS[self.layout].panels

    @property
    def bytes(self) -> int:
        """Bytes of its numbers and scales."""
        return self.rows * (self.cols * WIDTHS[self.dtype] + 4 * (self.dtype == "int8"))


@dataclass
class NativeSublayer:
    """One sublayer: the indices of its tensors, and its settings."""

    kind: int
    tensors: dict[str, int] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)


@dataclass
class NativePlan:
    """A model file without the numbers of its tensors."""

    model: nn.Module
    precision: WeightPrecision
    settings: dict[str, Any] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    parts: list[NativeSublayer] = field(default_factory=list)
    stored: list[StoredTensor] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # of all tensors, also shared ones

    def __post_init__(self) -> None:
        self._names: dict[int, str] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            self._names.setdefault(id(parameter), name)
        self._known: dict[tuple[Any, ...], int] = {}

    def matrix(
        self, name: str, parameters: Sequence[Tensor], layout: str = "rows", exact: bool = False
    ) -> int:
        """The index of the tensor made from these parameters; an equal one is reused."""
        self.names.append(name)
        dtype = "float32" if exact or layout == "vector" else self.precision.of(name)
        sources = tuple(self._names[id(p)] for p in parameters)
        key = (layout, dtype, sources)
        if key not in self._known:
            rows, cols = LAYOUTS[layout].pack([p.detach().to("meta") for p in parameters]).shape
            shapes = tuple(tuple(p.shape) for p in parameters)
            self._known[key] = len(self.stored)
            self.stored.append(StoredTensor(name, layout, dtype, sources, shapes, rows, cols))
        return self._known[key]

    def vector(self, name: str, *parameters: Tensor | None) -> dict[str, int]:
        """{last part of the name: index}; empty where there is no such parameter."""
        given = [parameter for parameter in parameters if parameter is not None]
        slot = name.rpartition(".")[2]
        return {slot: self.matrix(name, given, "vector")} if given else {}
