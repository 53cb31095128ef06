"""Attention over disjoint sets of keys, joined exactly through the log-sum-exp.

    out = sum_r exp(lse_r − lse) · out_r,   lse = logsumexp_r lse_r

A set without keys has log-sum-exp −inf and weighs nothing; with none at all the row stays 0.
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

Result = tuple[Tensor, Tensor]


def merge(results: list[Result]) -> Result:
    """Pairs of values (b, h, n, e) and log-sum-exp (b, h, n) -> the same over all keys together."""
    return reduce(_join, results)


def _join(a: Result, b: Result) -> Result:
    """Two sets: one interpolation, no copy of the values."""
    lses = torch.stack((a[1], b[1]))  # (2, b, h, n)
    weights, top, dead = _weights(lses)
    total = weights.sum(0)  # (b, h, n)
    share = (weights[1] / total)[..., None].to(a[0].dtype)
    return torch.lerp(a[0], b[0], share), _lse(total, top, dead)


def _weights(lses: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """exp(lse − top) per set, the largest log-sum-exp, and the rows that see nothing."""
    top = lses.detach().amax(0)  # (b, h, n)
    dead = top == float("-inf")
    top = top.masked_fill(dead, 0.0)
    # A dead row weighs its (zero) values equally: its gradient stays finite.
    return (lses.masked_fill(dead, 0.0) - top).exp(), top, dead


def _lse(total: Tensor, top: Tensor, dead: Tensor) -> Tensor:
    return (total.log() + top).masked_fill(dead, float("-inf"))
