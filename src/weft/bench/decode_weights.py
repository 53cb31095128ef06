"""Models for timing: full-sized, random, and without memory until they are filled.

A parameter (m, n) is a strided view of a short random array: W[i, j] = base[i·stride + j]. Its rows
differ, as those of a random matrix do, and it takes almost no memory. The native library copies it
into its own buffer; `fill` makes it an ordinary matrix for torch. So a model of tens of gigabytes
is never in memory twice. For speed only: such weights say nothing about quality.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from weft.errors import WeftError

Model = TypeVar("Model", bound=nn.Module)
_MEMORY = Path("/proc/meminfo")
_STRIDE = 13  # numbers between the beginnings of two rows


def hollow(config: Any, seed: int = 0) -> nn.Module:
    """The model of a config with strided views for matrices; activations keep unit size."""
    with torch.device("meta"):
        model = config.build()
    lost = [name for name, buffer in model.named_buffers() if buffer.is_meta]
    if lost:
        raise WeftError(f"a model for timing has parameters only, no buffers; got {lost}")
    generator = torch.Generator().manual_seed(seed)
    made: dict[Tensor, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter not in made:
                view = _strided(parameter.shape, generator)
                made[parameter] = nn.Parameter(view, requires_grad=False)
            setattr(module, name, made[parameter])
    return model.eval()


def fill(model: Model, dtype: torch.dtype = torch.float32) -> Model:
    """Copy every parameter into its own memory, in this precision."""
    for parameter in model.parameters():
        # Without copy=True, `to` returns the view itself where the dtype is the same.
        parameter.data = parameter.data.to(dtype, copy=True).contiguous()
    return model


def check_memory(needed: int) -> None:
    """Raise where this many bytes do not fit into free memory, if the system reports it."""
    if not _MEMORY.exists():
        return
    lines = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    if needed > free:
        raise WeftError(
            f"it needs {needed / 2**30:.3g} GiB, and {free / 2**30:.3g} are free; time fewer "
            "layers (--layers), fewer rows, or fewer paths"
        )


def _strided(shape: torch.Size, generator: torch.Generator) -> Tensor:
    if len(shape) < 2:
        # Gains and biases alike: activations keep unit size.
        return 1.0 + 0.1 * torch.randn(shape, generator=generator)
    rows, columns = shape[:-1].numel(), shape[-1]
    base = torch.randn(rows * _STRIDE + columns, generator=generator) * columns**-0.5
    strides = [shape[at + 1 : -1].numel() * _STRIDE for at in range(len(shape) - 1)]
    return base.as_strided(tuple(shape), (*strides, 1))
