"""Attention over disjoint sets of keys, joined exactly through the log-sum-exp.

out = sum_r exp(lse_r − lse) · out_r,   lse = logsumexp_r lse_r
"""

from __future__ import annotations

import torch
from torch import Tensor


def merge(results: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Pairs of values (b, h, n, e) and log-sum-exp (b, h, n) -> the same over all keys together.

    A row without keys has log-sum-exp −inf and weighs nothing; with none at all it stays 0.
    """
    if len(results) == 1:
        return results[0]
    lses = torch.stack([lse for _, lse in results])  # (r, b, h, n)
    top = lses.amax(0).detach()
    top = torch.where(top.isfinite(), top, 0.0)  # (b, h, n)
    weights = (lses - top).exp()  # (r, b, h, n)
    total = weights.sum(0)  # (b, h, n)
    alive = total > 0
    shares = weights / torch.where(alive, total, 1.0)  # (r, b, h, n)
    values = torch.stack([out for out, _ in results])  # (r, b, h, n, e)
    out = (values * shares[..., None].to(values.dtype)).sum(0)  # (b, h, n, e)
    lse = torch.where(alive, torch.where(alive, total, 1.0).log() + top, float("-inf"))
    return out, lse
