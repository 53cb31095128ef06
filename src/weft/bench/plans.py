"""Which kernels a module uses at a length, in one line, found without computing attention.

`attend` chooses its kernel by length, so a check at 512 tokens may run another one than the
measurement at 65,536. `planned` makes one forward pass in which attention is planned and skipped.
"""

from __future__ import annotations

from itertools import groupby

import torch
from torch import Tensor, nn

from weft.kernels.attend.api import plan_only
from weft.kernels.planner.choice import BLOCK, Choice, Choices
from weft.kernels.planner.context import recording, replaced
from weft.patterns import Tiles
from weft.patterns.lower import Lowered, Part


def planned(module: nn.Module, inputs: tuple[Tensor, ...]) -> Choices:
    """The choices of one forward pass, in order."""
    with replaced(plan_only), recording() as found, torch.no_grad():
        module(*inputs)
    return Choices(found)


def signature(choices: Choices) -> str:
    """Kernels and the kinds of their parts, e.g. `gather(natural+keys)+sdpa`."""
    texts = [_text(one) for one in choices]
    counted = [(text, len(list(same))) for text, same in groupby(texts)]
    return "+".join(text if count == 1 else f"{count}×{text}" for text, count in counted)


def _text(one: Choice) -> str:
    if one.operation != "attend":
        return f"{one.operation}: {one.kernel}"
    if one.lowered is None:
        return one.kernel
    size = "" if one.block == BLOCK else str(one.block)
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
