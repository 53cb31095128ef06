"""Kernels of one mechanism that replace plain PyTorch where they can: what they take, and why not.

A mechanism states its rules once:

    FUSED = FastKernel("linear attention", dtypes=(torch.bfloat16,))
    FUSED.takes(q, k, v, rules=(Rule(width in WIDTHS, "heads are 16, 32, 64 or 128 wide", width),))

A call checks `takes` before it runs; `choose` gives the same answer with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.kernels.planner.choice import Choice
from weft.kernels.planner.context import STATE, device_of, in_graph, is_recording, note

HALF = (torch.float16, torch.bfloat16)
FAST: dict[str, FastKernel] = {}  # by operation


class Rule(NamedTuple):
    """Something that must hold, in words, and the value that decides it."""

    holds: bool
    text: str
    value: Any = None


@dataclass(frozen=True)
class FastKernel:
    """A kernel for one operation; `plain` names what runs where it does not take a call."""

    operation: str
    dtypes: tuple[torch.dtype, ...] | None = None  # all inputs have the same one of them
    kernel: str = "triton"
    plain: str = "torch"
    graph: bool = False  # whether it can be part of a compiled graph

    def __post_init__(self) -> None:
        if self.operation in FAST:
            raise WeftError(f"{self.operation!r} is registered twice; operations are unique")
        FAST[self.operation] = self

    def takes(self, *tensors: Tensor, rules: tuple[Rule, ...] = ()) -> bool:
        """Whether to run it on these tensors; the choice is noted where choices are recorded."""
        forced = STATE.forced
        if forced is not None and forced in (self.kernel, self.plain):
            if is_recording():
                note(Choice(forced, "forced", self.operation))
            return forced == self.kernel
        device = device_of(tensors[0])
        refused = self.refusal(device, tuple(x.dtype for x in tensors), in_graph(), rules)
        if is_recording():
            note(self._choice(refused))
        # A device that is only assumed runs nothing.
        return refused is None and tensors[0].is_cuda

    def choose(
        self,
        device: str,
        dtypes: tuple[torch.dtype, ...],
        graph: bool = False,
        rules: tuple[Rule, ...] = (),
    ) -> Choice:
        """The choice for tensors of these dtypes on this kind of device."""
        return self._choice(self.refusal(device, dtypes, graph, rules))

    def refusal(
        self, device: str, dtypes: tuple[torch.dtype, ...], graph: bool, rules: tuple[Rule, ...]
    ) -> str | None:
        """Why it does not take a call; None: it does."""
        if device != "cuda":
            return f"runs on a GPU; got {device}"
        if graph and not self.graph:
            return "cannot be part of a compiled graph"
        traced = torch.compiler.is_compiling()  # then values have no text
        for rule in rules:
            if not rule.holds:
                plain = rule.value is None or traced
                return rule.text if plain else f"{rule.text}; got {rule.value}"
        known = self.dtypes
        if known is None or (dtypes[0] in known and all(each == dtypes[0] for each in dtypes)):
            return None
        if traced:
            return "takes other dtypes"
        return f"takes {_names(known)}, the same for all inputs; got {_names(dtypes)}"

    def _choice(self, refused: str | None) -> Choice:
        if refused is None:
            return Choice(self.kernel, "takes the call", self.operation)
        rejected = (f"{self.kernel}: {refused}",)
        return Choice(self.plain, "runs anywhere", self.operation, rejected)


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(dict.fromkeys(str(dtype).removeprefix("torch.") for dtype in dtypes))
