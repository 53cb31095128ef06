"""Which kernels a module would use at a length, found without paying for them.

`attend` chooses its kernel by length, so a check at 512 tokens may run another one than the
measurement at 65,536. `planned` makes one forward pass in which each choice is noted and then
replaced by a window of one token: cheap at any length, and nothing is compiled.
"""

from __future__ import annotations

from itertools import groupby
from unittest.mock import patch

import torch
from torch import Tensor, nn

import weft.kernels.attend as attend_module
from weft.kernels.plan import GATHER_BLOCK, Kernel, Plan, Request, plan
from weft.patterns import Sliding, Tiles
from weft.patterns.lower import Lowered, Part, lower


def planned(module: nn.Module, inputs: tuple[Tensor, ...]) -> list[Plan]:
    """The plans of one forward pass, in order; none for mixers that use no `attend`."""
    found: list[Plan] = []

    def noting(request: Request, kernel: Kernel = "auto") -> Plan:
        chosen = plan(request, kernel)
        found.append(chosen)
        if request.n > request.m:
            return chosen
        cheap = lower(Sliding(1), request.n, request.m, GATHER_BLOCK)
        return Plan("gather", "only noted", cheap)

    with patch.object(attend_module, "plan", noting), torch.no_grad():
        module(*inputs)
    return found


def signature(plans: list[Plan]) -> str:
    """Kernels and the kinds of their parts, e.g. `gather(natural+keys)+sdpa`."""
    texts = [_text(one) for one in plans]
    counted = [(text, len(list(same))) for text, same in groupby(texts)]
    return "+".join(text if count == 1 else f"{count}×{text}" for text, count in counted)


def _text(one: Plan) -> str:
    if one.lowered is None:
        return one.kernel
    size = "" if one.block == GATHER_BLOCK else str(one.block)
    return f"{one.kernel}{size}({_parts(one.lowered)})"


def _parts(lowered: Lowered) -> str:
    kinds = [_kind(part) for part in lowered.parts]
    return "+".join(kinds + ["rows"] * (lowered.apart is not None))


def _kind(part: Part) -> str:
    if part.fold > 1:
        return "fold"
    if isinstance(part.cols, Tiles):
        return "tiles"
    return "natural" if part.cols.count == part.length else "keys"
