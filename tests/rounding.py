"""How this machine rounds: results are compared bit for bit only where they were recorded alike.

Libraries choose their kernels by the processor, so a digest of torch's own functions tells.
"""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

FIXTURES = "5dadf0f6ffb17486"  # where tests/fixtures/v0_1_0 were made


def environment() -> dict[str, str]:
    """What decides how a CPU rounds: torch, instructions, and digests of torch's own functions."""
    return {
        "torch": torch.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "onednn": os.environ.get("ONEDNN_MAX_CPU_ISA", ""),
        "rounding": rounding(),
    }


@lru_cache
def rounding() -> str:
    """A digest of plain torch, without weft: libraries choose kernels by the processor as well."""
    found = []
    for dtype in (torch.float32, torch.float64):
        x, w = normal(2, 70, 32, seed=1, dtype=dtype), normal(96, 32, seed=2, dtype=dtype)
        y = F.linear(x, w)
        found += [y, y @ y.mT, y.softmax(-1), y.exp(), y.tanh(), y.sigmoid(), F.gelu(y)]
        found += [F.layer_norm(y, (96,)), torch.fft.fft2(y).real, y.cumsum(1), y.logsumexp(-1)]
        found.append(F.conv1d(y.mT, normal(8, 96, 5, seed=3, dtype=dtype)))
        found.append(F.scaled_dot_product_attention(*y[:, None].chunk(3, -1), is_causal=True))
        found.append(normal(40, 300, seed=4, dtype=dtype) @ normal(300, 50, seed=5, dtype=dtype))
    return digest(*found)


def as_fixtures() -> bool:
    """Whether results may be compared with the fixtures bit for bit."""
    return rounding() == FIXTURES and torch.get_num_threads() == 1


def digest(*parts: object) -> str:
    """16 hex digits of the bytes, shapes and types of tensors, and of the repr of other values."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            found.update(f"{part.dtype} {tuple(part.shape)}".encode())
            raw = part.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            found.update(raw.numpy().tobytes())
        else:
            found.update(repr(part).encode())
    return found.hexdigest()[:16]


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Gaussian numbers; the same for all precisions but for rounding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)
