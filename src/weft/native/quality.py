"""The cost of a precision in quality: the loss on a text, part by part.

    change = mean −log p(token) with the part rounded − the same with everything in float32

Each group of parts is rounded alone, then all together with the cache. The text is read in
windows of equal length, each from an empty state; the first token of a window is not predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from weft.errors import WeftError
from weft.native.describe import describe
from weft.native.model import compile as compile_model
from weft.native.precision import WeightPrecision

GROUPS = {
    "embedding": ("embedding",),
    "attention": ("*.attention.*",),
    "controller": ("*.feedforward.low", "*.feedforward.logits"),
    "feedforward": ("*.feedforward.*",),
    "output": ("output",),
}


@dataclass(frozen=True, kw_only=True)
class QualityRow:
    """One group of parts, or everything, at one precision."""

    part: str
    dtype: str
    bytes: int  # of the whole model with this part rounded
    loss: float  # nats per token
    change: float


def quality(
    model: nn.Module, ids: Sequence[int], precision: WeightPrecision, window: int = 256
) -> list[QualityRow]:
    """A row for float32, for each group of parts, for the cache, and for all of `precision`."""
    if window < 2:
        raise WeftError(f"a window holds a token and the one it predicts; got window={window}")
    if len(ids) < window:
        raise WeftError(f"the text has {len(ids)} tokens, fewer than a window of {window}")
    rows = len(ids) // window
    windows = torch.tensor(ids[: rows * window]).view(rows, window)  # (b, n)
    exact = _loss(model, windows, WeightPrecision())
    found = [_row(model, "nothing", "float32", WeightPrecision(), exact, exact)]
    names = describe(model, WeightPrecision()).names
    for group in GROUPS:
        own = {name: precision.of(name) for name in names if _group(name) == group}
        own = {name: dtype for name, dtype in own.items() if dtype != "float32"}
        if own:
            alone = WeightPrecision(parts=own)
            dtype = ", ".join(sorted(set(own.values())))
            found.append(_row(model, group, dtype, alone, _loss(model, windows, alone), exact))
    if precision.cache != "float32":
        alone = WeightPrecision(cache=precision.cache)
        loss = _loss(model, windows, alone)
        found.append(_row(model, "cache", precision.cache, alone, loss, exact))
    everything = _loss(model, windows, precision)
    return [*found, _row(model, "all", precision.weights, precision, everything, exact)]


def _group(name: str) -> str | None:
    """The first group with a pattern that matches."""
    fits = (g for g, patterns in GROUPS.items() if any(fnmatchcase(name, p) for p in patterns))
    return next(fits, None)


@torch.no_grad()
def _loss(model: nn.Module, windows: torch.Tensor, precision: WeightPrecision) -> float:
    made: Any = compile_model(
        model,
        dtype=precision.weights,
        cache=precision.cache,
        output=precision.output,
        parts=dict(precision.parts),
    )
    total = 0.0
    for row in windows:
        scores, _ = made.step(row[None], made.start(1))
        total += float(F.cross_entropy(scores[0, :-1].double(), row[1:], reduction="sum"))
    return total / (windows.numel() - len(windows))


def _row(
    model: nn.Module, part: str, dtype: str, precision: WeightPrecision, loss: float, exact: float
) -> QualityRow:
    size = sum(tensor.bytes for tensor in describe(model, precision).stored)
    return QualityRow(part=part, dtype=dtype, bytes=size, loss=loss, change=loss - exact)
