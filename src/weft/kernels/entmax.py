"""α-entmax: a softmax that gives exact zeros, with its exact gradient.

    p_i = [x_i − τ]₊^q,   x = (α − 1) s,   q = 1 / (α − 1),   τ such that p sums to 1

α → 1 is softmax, α = 2 sparsemax (Peters et al. 2019, https://arxiv.org/abs/1905.05702). τ comes
from Newton's method on ‖[x − τ]₊‖_q = 1, whose left side is convex and falls with τ: from below the
steps never pass the root, and equal scores are solved in one.

Backward, with g = p^{2−α} where p > 0 and ĝ = g / Σ g (Correia et al. 2019, proposition 1):

    ∂L/∂s = g ∘ (dp − Σ ĝ dp)
    ∂p/∂α = (p − ĝ) / (α − 1)² + (H − ĝ Σ H) / (α − 1),   H = −p ln p
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CLOSEST = 1e-3  # α stays this far above 1, where the formula is singular
TINY = 1e-30  # what is not above 0 counts as this much in a logarithm, and then not at all
STEPS = {torch.float32: 8, torch.float64: 10}  # of Newton's method


def entmax(scores: Tensor, alpha: Tensor, mask: Tensor | None = None) -> Tensor:
    """Scores (b, h, n, m), α (h,) in (1, 2], mask (True: may be read) -> weights (b, h, n, m).

    A row that may read nothing gets zeros. Computed in float32 at least.
    """
    work = torch.promote_types(scores.dtype, torch.float32)
    alpha = alpha.to(work).clamp(min=1 + CLOSEST)[:, None, None]  # (h, 1, 1)
    if mask is None:
        return _Entmax.apply(scores.to(work), alpha)
    mask = mask.expand_as(scores)
    dead = ~mask.any(-1, keepdim=True)
    scores = scores.to(work).masked_fill(~(mask | dead), -torch.inf)
    return _Entmax.apply(scores, alpha).masked_fill(~mask, 0.0)


class _Entmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, alpha: Tensor) -> Tensor:
        power = 1 / (alpha - 1)
        x = (scores - scores.amax(-1, keepdim=True)) * (alpha - 1)  # at most 0, so τ >= −1
        tau = torch.full_like(x[..., :1], -1.0)
        for _ in range(STEPS[x.dtype]):
            steep = raised(x - tau, power - 1)
            slope = steep.sum(-1, keepdim=True)
            total = (steep * (x - tau).clamp(min=0)).sum(-1, keepdim=True)
            tau = tau + (total - total ** (1 - 1 / power)) / slope
        p = raised(x - tau, power)
        p = p / p.sum(-1, keepdim=True)
        ctx.save_for_backward(p, alpha)
        return p

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        p, alpha = ctx.saved_tensors
        g = raised(p, 2 - alpha)
        share = g / g.sum(-1, keepdim=True)
        to_scores = g * (grad - (share * grad).sum(-1, keepdim=True))
        if not ctx.needs_input_grad[1]:
            return to_scores, None
        entropy = -p * p.clamp(min=TINY).log()
        slope = (p - share) / (alpha - 1) ** 2
        slope = slope + (entropy - share * entropy.sum(-1, keepdim=True)) / (alpha - 1)
        return to_scores, (grad * slope).sum_to_size(alpha.shape)


def raised(x: Tensor, power: Tensor) -> Tensor:
    """x to a power where x is above 0, else 0; several times as fast as pow, which meets zeros."""
    return torch.where(x > 0, (x.clamp(min=TINY).log2() * power).exp2(), 0.0)
