"""Linear attention: features of keys meet the values first, so no n × m matrix ever exists.

    out_i = S_iᵀ φ(q_i) / (z_i·φ(q_i) + ε),    S_i = Σ_j φ(k_j) v_jᵀ,    z_i = Σ_j φ(k_j)

The sums run over every real key or, causally, over j ≤ i. Then they are a recurrence, which may
forget: S_i = exp(a_i)·S_{i−1} + φ(k_i) v_iᵀ with a_i ≤ 0, one number per key head and token.
(A gated sum g·S + (1 − g)·φ(k) vᵀ is a = log g and features scaled by 1 − g.)

The causal form works in chunks of w tokens: scores inside a chunk are a masked w × w product, all
that came before a chunk is one carried S, and the S of all chunks come from one cumulative sum
(with decay: from log₂(n / w) doublings). Everything is batched over chunks.

Letters beside the usual ones: f features, p = h / g query heads per key head, u chunks.
Time O(n·f·e + n·w·(f + e)), memory O(n·w + n·f·e / w), state f·(e + 1) per key head.
Products are taken in the precision of features and values (float16 in float32, for its range), the
sums over tokens in float32 at least, also under autocast. Where features may be negative, `floor`
keeps the denominator from vanishing: one below it counts as `floor`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import WeftError
from weft.kernels.autocast import without_autocast
from weft.kernels.linear_attention.bidirectional import elu_plus_one, read_both_ways
from weft.kernels.linear_attention.triton import can_fuse, fused_causal_attention
from weft.kernels.slots import into_blocks


class Sums(NamedTuple):
    """What is carried from token to token: S and z."""

    values: Tensor  # (b, g, f, e)
    weights: Tensor  # (b, g, f)


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    valid: Tensor | None = None,
    log_decay: Tensor | None = None,
    eps: float = 1e-6,
    floor: float | None = None,
    chunk: int = 64,
    feature: Literal["given", "elu"] = "given",
    refused: bool = False,
) -> Tensor:
    """Features (b, h, n, f) and (b, g, m, f), values (b, g, m, e) -> (b, h, n, e).

    `valid` (b, m) is True where a key is real; `log_decay` (b, g, m) needs `causal`. With
    feature="elu" the features are elu + 1 of what is given. Causal, on a GPU in bfloat16, our own
    kernels run (`triton.py`), unless the caller says that they `refused` before.
    """
    if not refused and can_fuse(q, k, v, causal=causal):
        gates = {"valid": valid, "log_decay": log_decay}
        return fused_causal_attention(q, k, v, feature=feature, eps=eps, floor=floor, **gates)
    if feature == "elu":
        q, k = elu_features(q), elu_features(k)
    if valid is not None:
        hidden = ~valid[:, None, :, None]
        k, v = k.masked_fill(hidden, 0.0), v.masked_fill(hidden, 0.0)
    if causal:
        return causal_linear_attention(
            q, k, v, log_decay=log_decay, eps=eps, floor=floor, chunk=chunk
        )[0]
    if log_decay is not None:
        raise WeftError("a decay forgets the past, so it needs causal=True; got causal=False")
    dtype, (_, work) = v.dtype, _precisions(q, v)
    q, k, v = q.to(work), k.to(work), v.to(work)
    rows = q.unflatten(1, (k.shape[1], -1)).flatten(2, 3)  # (b, g, p * n, f)
    out = read_both_ways(rows, k, v, eps, floor)  # (b, g, p * n, e)
    return out.unflatten(2, (-1, q.shape[2])).flatten(1, 2).to(dtype)  # (b, h, n, e)


def elu_features(x: Tensor) -> Tensor:
    """φ(x) = elu(x) + 1 without cancellation; float16 in float32, for the range of their sums."""
    return elu_plus_one(x.float() if x.dtype == torch.float16 else x)


def causal_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    sums: Sums | None = None,
    log_decay: Tensor | None = None,
    eps: float = 1e-6,
    floor: float | None = None,
    chunk: int = 64,
) -> tuple[Tensor, Sums]:
    """Causal form from the sums so far: values (b, h, n, e) and the sums after the last token."""
    b, g, n, f = k.shape
    dtype, size, (exact, work) = v.dtype, min(chunk, n), _precisions(q, v)
    q = into_blocks(q.to(work).unflatten(1, (g, -1)), size).transpose(2, 3)  # (b, g, u, p, w, f)
    k, v = into_blocks(k.to(work), size), into_blocks(v.to(work), size)  # (b, g, u, w, f or e)
    group = q.shape[3:5]
    read, write, inside, total = q, k, None, None
    if log_decay is not None:
        steps = into_blocks(log_decay.to(exact)[..., None], size)  # (b, g, u, w, 1)
        since = steps.squeeze(-1).cumsum(-1)  # (b, g, u, w)
        total = since[..., -1]  # (b, g, u)
        read = q * since.exp()[:, :, :, None, :, None].to(work)
        write = k * (total[..., None] - since).exp()[..., None].to(work)
        inside = _decay_matrix(since)[:, :, :, None].to(work)  # (b, g, u, 1, w, w)
    if sums is None:
        zero = q.new_zeros(b, g, f, v.shape[-1], dtype=exact)
        sums = Sums(zero, zero[..., 0])
    with without_autocast(q):
        before = Sums(
            _running(sums.values, write.transpose(-1, -2) @ v, total),
            _running(sums.weights, write.sum(-2, dtype=exact), total),
        )
        past = Sums(before.values[:, :, :-1].to(work), before.weights[:, :, :-1].to(work))
        scores = q.flatten(3, 4) @ k.transpose(-1, -2)  # (b, g, u, p * w, w)
        scores = scores.unflatten(3, group)  # (b, g, u, p, w, w)
        scores = scores.tril() if inside is None else scores * inside
        scores, read = scores.flatten(3, 4), read.flatten(3, 4)  # (b, g, u, p * w, w or f)
        top = scores @ v + read @ past.values  # (b, g, u, p * w, e)
        bottom = scores.sum(-1, keepdim=True, dtype=exact) + read @ past.weights[..., None]
    out = (top / _divisor(bottom, eps, floor)).to(dtype).unflatten(3, group)  # (b, g, u, p, w, e)
    out = out.transpose(2, 3).flatten(3, 4)[..., :n, :].flatten(1, 2)  # (b, h, n, e)
    return out, Sums(before.values[:, :, -1].clone(), before.weights[:, :, -1].clone())


def linear_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sums: Sums,
    *,
    log_decay: Tensor | None = None,
    eps: float = 1e-6,
    floor: float | None = None,
) -> tuple[Tensor, Sums]:
    """One token of the causal form as a recurrence: (b, h, 1, f), ... -> (b, h, 1, e) and sums."""
    exact, dtype = sums.values.dtype, v.dtype
    q, k, v = q.to(exact), k.to(exact), v.to(exact)
    values, weights = sums
    if log_decay is not None:
        kept = log_decay.to(exact).exp()  # (b, g, 1)
        values, weights = values * kept[..., None], weights * kept
    sums = Sums(values + k.transpose(-1, -2) * v, weights + k.squeeze(2))
    with without_autocast(q):
        rows = q.squeeze(2).unflatten(1, (k.shape[1], -1))  # (b, g, p, f)
        out = _read(rows, sums, eps, floor)  # (b, g, p, e)
    return out.flatten(1, 2)[:, :, None].to(dtype), sums


def _read(rows: Tensor, sums: Sums, eps: float, floor: float | None) -> Tensor:
    """(b, g, rows, f) -> (b, g, rows, e)."""
    values, weights = sums.values.to(rows.dtype), sums.weights.to(rows.dtype)
    bottom = (rows @ weights[..., None]).to(sums.weights.dtype)
    return rows @ values / _divisor(bottom, eps, floor)


def _divisor(bottom: Tensor, eps: float, floor: float | None) -> Tensor:
    return bottom + eps if floor is None else bottom.clamp(min=floor)


def _precisions(q: Tensor, v: Tensor) -> tuple[torch.dtype, torch.dtype]:
    """Of sums over tokens, and of products."""
    given = torch.promote_types(q.dtype, v.dtype)
    exact = torch.promote_types(given, torch.float32)
    return exact, exact if given == torch.float16 else given


def _decay_matrix(since: Tensor) -> Tensor:
    """What is left at t of what came at s ≤ t of one chunk: (..., w) -> (..., w, w), 0 if s > t."""
    w = since.shape[-1]
    later = torch.ones(w, w, dtype=torch.bool, device=since.device).triu(1)  # (w, w)
    return (since[..., :, None] - since[..., None, :]).masked_fill(later, -torch.inf).exp()


def _running(first: Tensor, updates: Tensor, total: Tensor | None) -> Tensor:
    """Sums before each chunk and after the last: (b, g, ...), (b, g, u, ...) -> (b, g, u + 1, ...).

    `total` (b, g, u) is the log-decay over each chunk.
    """
    sums = torch.cat((first[:, :, None], updates.to(first.dtype)), dim=2)
    if total is None:
        return sums.cumsum(2)
    clock = F.pad(total, (1, 0)).cumsum(-1)  # (b, g, u + 1)
    clock = clock.view(*clock.shape, *(1,) * (sums.dim() - 3))
    reach = 1
    while reach < sums.shape[2]:
        kept = (clock[:, :, reach:] - clock[:, :, :-reach]).exp()
        grown = sums[:, :, reach:] + sums[:, :, :-reach] * kept
        sums, reach = torch.cat((sums[:, :, :reach], grown), dim=2), 2 * reach
    return sums
