"""Sinkhorn balancing: positive matrices whose rows and columns are divided by their sums in turn.

    P = softmax over rows of the scores,   then P ← P / column sums,   P ← P / row sums, repeated

The limit is doubly stochastic, a soft permutation. The causal form has entries below the diagonal
only, and a column sum that runs down: row u is divided by what rows up to u hold, so no row depends
on a later one.
"""

from __future__ import annotations

import torch
from torch import Tensor

TINY = 1e-30  # a sum below it is one of zeros, and divides nothing


def balance(scores: Tensor, iterations: int, allowed: Tensor | None = None) -> Tensor:
    """(..., u, u) -> (..., u, u), rows sum to 1; `allowed` marks entries that may be above 0."""
    p = (scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)).softmax(-1)
    for _ in range(iterations):
        p = divided(p, p.sum(-2, keepdim=True))
        p = divided(p, p.sum(-1, keepdim=True))
    return p


def causal_balance(scores: Tensor, iterations: int) -> Tensor:
    """(..., u, u) -> (..., u, u) below the diagonal; rows sum to 1, but the first is 0."""
    below = torch.ones_like(scores, dtype=torch.bool).tril(-1)
    first = torch.zeros_like(below[..., :1])
    first[..., 0, :] = True  # a row without entries takes any, and loses it again
    p = scores.masked_fill(~(below | first), -torch.inf).softmax(-1).masked_fill(~below, 0.0)
    for _ in range(iterations):
        p = divided(p, p.cumsum(-2))
        p = divided(p, p.sum(-1, keepdim=True))
    return p


def divided(p: Tensor, sums: Tensor) -> Tensor:
    """p / sums, and p where a sum is 0: the gradient stays finite."""
    return p / torch.where(sums > TINY, sums, 1.0)
