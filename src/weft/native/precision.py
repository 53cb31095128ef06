"""Precisions of a native model: float32, bfloat16, or int8 with one scale for each row.

    int8:  w ≈ scale · q,   q = round(w / scale) in −127 … 127,   scale = max |w| of the row / 127

Rows are those of the stored layout: an output of a dense matrix, a hidden unit of a sparse
feed-forward, an input of a multiplicative map. Biases and norms stay float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from weft.errors import WeftError

DTYPES = {"float32": 0, "bfloat16": 1, "int8": 2}
WIDTHS = {"float32": 4, "bfloat16": 2, "int8": 1}


@dataclass(frozen=True, kw_only=True)
class WeightPrecision:
    """How the numbers of a native model are stored."""

    weights: str = "float32"
    cache: str = "float32"  # keys and values
    output: str | None = None  # the matrix over the vocabulary; None: as weights
    # By part, as `{"*.feedforward.*": "int8", "3.*": "float32"}`; the first match counts.
    parts: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("weights", "cache", "output"):
            check_dtype(name, getattr(self, name) or self.weights)
        for name, dtype in self.parts.items():
            check_dtype(f"parts[{name!r}]", dtype)

    def of(self, part: str) -> str:
        """The precision of a part, named as in `NativeModel.parts`."""
        for pattern, dtype in self.parts.items():
            if fnmatchcase(part, pattern):
                return dtype
        if part == "output" and self.output is not None:
            return self.output
        return self.weights


def check_dtype(name: str, dtype: str) -> None:
    """Raise for an unknown precision."""
    if dtype not in DTYPES:
        raise WeftError(f"{name} is stored as {', '.join(DTYPES)}; got {dtype!r}")


def quantise(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Float rows (r, c) -> int8 (r, c) and their scales (r,)."""
    largest = rows.abs().amax(1)
    scales = torch.where(largest > 0, largest / 127, 1.0)
    return (rows / scales[:, None]).round().clamp(-127, 127).to(torch.int8), scales
