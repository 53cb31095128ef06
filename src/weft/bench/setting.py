"""What all cases of a benchmark share."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from weft.errors import WeftError, at_least

DEVICES = ("cpu", "cuda")
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Shapes, direction, precision and device."""

    device: str = "cpu"
    dtype: str = "float32"
    batch: int = 1
    heads: int = 8
    head_dim: int = 64
    kv_heads: int | None = None  # heads of keys and values, shared by query heads; None: heads
    causal: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise WeftError(f"device is one of {', '.join(DEVICES)}; got {self.device!r}")
        if self.dtype not in DTYPES:
            raise WeftError(f"dtype is one of {', '.join(DTYPES)}; got {self.dtype!r}")
        at_least(1, batch=self.batch, heads=self.heads, head_dim=self.head_dim)
        if self.kv_heads is not None and (self.kv_heads < 1 or self.heads % self.kv_heads):
            raise WeftError(
                f"kv_heads divides heads; got kv_heads={self.kv_heads}, heads={self.heads}"
            )
        if self.device == "cuda" and not torch.cuda.is_available():
            raise WeftError("device=cuda needs a CUDA device, and torch sees none; use device=cpu")

    @property
    def dim(self) -> int:
        """Width of the model."""
        return self.heads * self.head_dim

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype itself."""
        return DTYPES[self.dtype]
