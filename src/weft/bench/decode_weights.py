"""Models for timing: full-sized, random, and without memory until they are filled.

A parameter (m, n) is a window over a short random array: W[i, j] = base[i·stride + j]. Its rows
differ, as those of a random matrix do, and it takes no memory of its own. The native library copies
it into its own image; `fill` makes it an ordinary matrix for torch. So two forms of a model of tens
of gigabytes never lie in memory side by side. Speed only: such weights say nothing about quality.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import WeftError

_MEMORY = Path("/proc/meminfo")
_STRIDE = 13  # numbers between the beginnings of two rows


def hollow(config: Any, seed: int = 0) -> nn.Module:
    """The model of a config, every matrix a window; activations keep their size through it."""
    with torch.device("meta"):
        model = config.build()
    lost = [name for name, buffer in model.named_buffers() if buffer.is_meta]
    if lost:
        raise WeftError(f"a model for timing has parameters alone, no buffers; got {lost}")
    generator = torch.Generator().manual_seed(seed)
    made: dict[Tensor, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter not in made:
                window = _window(parameter.shape, generator)
                made[parameter] = nn.Parameter(window, requires_grad=False)
            setattr(module, name, made[parameter])
    return model.eval()


def fill(model: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Give every parameter memory of its own, in this precision."""
    for parameter in model.parameters():
        # `to` alone would keep the window where the precision is the same.
        parameter.data = parameter.data.to(dtype, copy=True).contiguous()
    return model


def check_memory(needed: int) -> None:
    """Refuse what does not fit into the memory that is free, where the system tells."""
    if not _MEMORY.exists():
        return
    lines = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    if needed > free:
        raise WeftError(
            f"it needs {needed / 2**30:.3g} GiB, and {free / 2**30:.3g} are free; time fewer "
            "layers (--layers), fewer rows, or fewer paths"
        )


def _window(shape: torch.Size, generator: torch.Generator) -> Tensor:
    if len(shape) < 2:
        # Gains and biases: near 1 and near 0 alike do for a token stream of unit size.
        return 1.0 + 0.1 * torch.randn(shape, generator=generator)
    rows, columns = shape[:-1].numel(), shape[-1]
    base = torch.randn(rows * _STRIDE + columns, generator=generator) * columns**-0.5
    strides = [shape[at + 1 : -1].numel() * _STRIDE for at in range(len(shape) - 1)]
    return base.as_strided(tuple(shape), (*strides, 1))
