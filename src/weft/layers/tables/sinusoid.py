"""The sinusoid of positions.

    s(p)_2k = sin(p · 10000^(−2k/c)),    s(p)_(2k+1) = cos(p · 10000^(−2k/c))

Paper: Vaswani et al. 2017, section 3.5, https://arxiv.org/abs/1706.03762
"""

from __future__ import annotations

import torch
from torch import Tensor


def sinusoid(positions: Tensor, dim: int) -> Tensor:
    """Integer positions (...) -> (..., dim) in float64: channels 2k, 2k + 1 are sin, cos."""
    power = torch.arange(0, dim, 2, device=positions.device, dtype=torch.float64) / dim
    angle = positions.to(torch.float64)[..., None] * 10_000.0**-power
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)[..., :dim]
