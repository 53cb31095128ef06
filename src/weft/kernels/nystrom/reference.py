"""Landmarks: means of equal segments of the real tokens, their inverse, attention from and to them.

A row of L real tokens has r' = min(r, L) landmarks; token j belongs to segment ⌊j·r' / L⌋, so
segments differ by one token at most and padding moves none of them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.autocast import without_autocast
from weft.kernels.nystrom.solve import can_solve, fused_solve
from weft.kernels.nystrom.triton import (
    MEANS,
    can_fuse,
    counts_of,
    fused_ask,
    fused_means,
    fused_read,
)


def segments(length: Tensor, n: int, count: int) -> tuple[Tensor, Tensor]:
    """Real lengths (b,) -> the tokens of each segment (b, r, n), and which segments exist (b, r).

    `count` is r; every length is at least 1 and at most n.
    """
    index = torch.arange(n, device=length.device)
    used = length.clamp(max=count)[:, None]  # (b, 1)
    segment = index * used // length[:, None]  # (b, n)
    place = torch.arange(count, device=length.device)[:, None]  # (r, 1)
    inside = (segment[:, None] == place) & (index < length[:, None, None])  # (b, r, n)
    return inside, used > place.T


def with_means(q: Tensor, k: Tensor, v: Tensor, count: int) -> tuple[Tensor, ...]:
    """q, k, v and v again, and the means (b, _, r, d) of `count` equal segments of q and of k."""
    if MEANS.takes(q, k, v):
        return fused_means(q, k, v, count)
    return q, k, v, v, *(x.unflatten(2, (count, -1)).mean(3) for x in (q, k))


def segment_means(x: Tensor, inside: Tensor) -> Tensor:
    """Tokens (b, h, n, d), segments (b, r, n) -> (b, h, r, d); an empty segment gives 0."""
    # Ones and zeros are exact in any precision; a sum over tokens may leave the range of float16.
    work = torch.float32 if x.dtype == torch.float16 else x.dtype
    count = inside.sum(-1).clamp(min=1)[:, None, :, None]  # (b, 1, r, 1)
    return ((inside.to(work)[:, None] @ x.to(work)) / count).to(x.dtype)


def read_landmarks(
    q: Tensor, k: Tensor, v: Tensor, there: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """Attention of q (b, h, n, d) to landmarks k, v (b, h, r, d): (b, h, n, d).

    `there` (b, r) marks landmarks that exist, from the first on; None: all of them.
    """
    if can_fuse(q, k, v, dropout):
        return fused_read(q, k, v, there)
    mask = None if there is None else there[:, None, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)


def ask_tokens(q: Tensor, k: Tensor, v: Tensor, length: Tensor | None = None) -> Tensor:
    """Attention of landmarks q (b, h, r, d) to tokens k, v (b, h, n, d): (b, h, r, d).

    Of each row the first `length` (b,) tokens are read, at least one; None: all of them.
    """
    if can_fuse(k, q, v):
        return fused_ask(q, k, v, length)
    if length is None:
        return F.scaled_dot_product_attention(q, k, v)
    real = torch.arange(k.shape[2], device=k.device) < length[:, None]  # (b, n)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=real[:, None, None])


def solve(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    there: Tensor | None,
    iterations: int,
    *,
    shared_start: bool = False,
) -> Tensor:
    """Z v (b, h, r, d), Z ≈ softmax(q kᵀ/√d)⁺ among landmarks (b, h, r, d), in float32 at least.

    `there` (b, r) marks landmarks that exist, from the first on; the others stay by themselves.
    """
    if not shared_start and can_solve(q, k, v):
        return fused_solve(q, k, v, counts_of(there, q), iterations)
    work = torch.promote_types(q.dtype, torch.float32)
    scores = (q.to(work) * q.shape[-1] ** -0.5) @ k.to(work).mT  # (b, h, r, r)
    if there is None:
        weights = scores.softmax(-1)
    else:
        weights = scores.masked_fill(~there[:, None, None], -torch.inf).softmax(-1)
        alone = torch.eye(there.shape[1], dtype=work, device=there.device)
        weights = torch.where(there[:, None, :, None], weights, alone)
    inverse = iterative_inverse(weights, iterations, shared_start=shared_start)
    return (inverse @ v.to(work)).to(v.dtype)


def iterative_inverse(a: Tensor, iterations: int, *, shared_start: bool = False) -> Tensor:
    """The Moore-Penrose inverse of matrices (..., r, r), approached from Aᵀ / (‖A‖₁ ‖A‖_∞).

    Z ← ¼ Z (13 I − A Z (15 I − A Z (7 I − A Z))): cubic once near (Razavi et al. 2014).
    `shared_start`: the matrices (b, h, r, r) of a row start from the largest ‖A‖₁ of its heads.
    """
    size = a.abs()
    columns, rows = size.sum(-2).amax(-1), size.sum(-1).amax(-1)
    if shared_start:
        columns = columns.amax(-1, keepdim=True)
    z = a.transpose(-1, -2) / (columns * rows)[..., None, None]
    with without_autocast(a):  # half precision would not converge
        flat = (x.reshape(-1, *a.shape[-2:]) for x in (a, z))
        return _Inverse.apply(*flat, iterations).reshape(a.shape)


class _Inverse(torch.autograd.Function):
    """The iterations (m, r, r) by few calls: small matrices on a GPU are bound by launches."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, z: Tensor, iterations: int) -> Tensor:
        one, kept = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device), []
        seven, fifteen, thirteen = 7 * one, 15 * one, 13 * one
        for _ in range(iterations):
            az = a @ z
            inner = seven - az
            middle = torch.baddbmm(fifteen, az, inner, alpha=-1)
            outer = torch.baddbmm(thirteen, az, middle, alpha=-1)
            kept += [z, az, inner, middle, outer]
            z = torch.baddbmm(z, z, outer, beta=0, alpha=0.25)
        ctx.save_for_backward(a, *kept)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        a, *kept = ctx.saved_tensors
        with without_autocast(a):
            return *_through_iterations(a, kept, dz), None


def _through_iterations(a: Tensor, kept: list[Tensor], dz: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of A and of the first Z from that of the last."""
    da = torch.zeros_like(a)
    while kept:
        *kept, z, az, inner, middle, outer = kept
        douter = torch.baddbmm(dz, z.mT, dz, beta=0, alpha=0.25)
        before = torch.baddbmm(dz, dz, outer.mT, beta=0, alpha=0.25)
        dmiddle = torch.baddbmm(dz, az.mT, douter, beta=0, alpha=-1)
        daz = az.mT @ dmiddle
        daz.baddbmm_(dmiddle, inner.mT, alpha=-1).baddbmm_(douter, middle.mT, alpha=-1)
        da.baddbmm_(daz, z.mT)
        dz = before.baddbmm_(a.mT, daz)
    return da, dz
