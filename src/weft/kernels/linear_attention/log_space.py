"""Causal linear attention of positive features given by their logarithms: exact at any scale.

    out_i = Σ_{j≤i} A_ij v_j / Σ_{j≤i} A_ij,    A_ij = Σ_f exp(a_if + c_jf)

One shift for all features is not enough: where the features that a query prefers are small in every
key, all products vanish though their ratio does not. So each feature has a shift of its own, the
largest c_jf among the keys of a group, which cancels:

    Σ_j A_ij v_j = e^{m_i} Σ_f e^{a_if + t_f − m_i} Σ_j e^{c_jf − t_f} v_j,
    t_f = max_j c_jf,    m_i = max_f (a_if + t_f)

The denominator of a group is then at least 1. Query i reads these groups: all chunks before its own
through carried sums, in its chunk the left neighbour of its half, quarter, eighth …, and itself.
Each group is a batched product; their results are joined through m. No group holds a later key.

Letters beside the usual ones: f features, p = h / g query heads per key head, u chunks of w tokens.
Time O(n·f·e + n·w·(f + e)), memory O(n·f·log w + n·f·e / w), state f·(e + 2) per key head.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.kernels.autocast import without_autocast
from weft.kernels.slots import into_blocks

NONE = -1e30  # the shift of an empty group: finite, so that −inf minus it is not NaN
TINY = 1e-30  # keeps an empty row's 0 / 0 from being NaN; any other denominator is at least 1


class LogSums(NamedTuple):
    """What is carried from token to token: S and z, feature by feature in units of exp(top)."""

    values: Tensor  # (b, g, f, e)
    weights: Tensor  # (b, g, f)
    top: Tensor  # (b, g, f)


class Reading(NamedTuple):
    """Numerators and denominators of some queries in units of exp(top)."""

    num: Tensor  # (..., e)
    den: Tensor  # (..., 1)
    top: Tensor  # (..., 1)


def shifted_features(a: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Features for one sum over all keys: (b, h, n, f), (b, g, m, f) -> the same, at most 1."""
    top = _tops(c)  # (b, g, 1, f)
    heads = a.unflatten(1, (c.shape[1], -1)) + top[:, :, None]  # (b, g, p, n, f)
    heads = (heads - heads.detach().amax(-1, keepdim=True)).exp()
    return heads.flatten(1, 2), (c - top).exp()


def log_linear_attention(
    a: Tensor,
    c: Tensor,
    v: Tensor,
    *,
    sums: LogSums | None = None,
    dtype: torch.dtype | None = None,
    chunk: int = 64,
) -> tuple[Tensor, LogSums]:
    """Logarithms (b, h, n, f) and (b, g, n, f), values (b, g, n, e) -> (b, h, n, e) and the sums.

    Logarithms are float32 or float64, −inf hides a key; products are taken in `dtype`, by default
    that of the logarithms.
    """
    n, g, work = c.shape[2], c.shape[1], dtype or c.dtype
    size = min(chunk, 1 << (n - 1).bit_length())  # a power of two: chunks are halved
    padded = F.pad(c, (0, 0, 0, -n % size), value=-torch.inf)
    keys, values = into_blocks(padded, size), into_blocks(v.to(work), size)  # (b, g, u, w, _)
    asks = into_blocks(a.unflatten(1, (g, -1)), size).transpose(2, 3)  # (b, g, u, p, w, f)
    sums = start_sums(c, v.shape[-1]) if sums is None else sums
    with without_autocast(c):
        before = _sums_before(sums, keys, values)
        past = LogSums(*(x[:, :, :-1] for x in before))
        read = _joined(_inside(asks, keys, values), _read(asks, past, work))
    out = (read.num / (read.den + TINY)).to(v.dtype)  # (b, g, u, p, w, e)
    out = out.transpose(2, 3).flatten(3, 4)[..., :n, :].flatten(1, 2)  # (b, h, n, e)
    return out, LogSums(*(x[:, :, -1].clone() for x in before))


def log_linear_step(a: Tensor, c: Tensor, v: Tensor, sums: LogSums) -> tuple[Tensor, LogSums]:
    """One token: (b, h, 1, f), (b, g, 1, f), (b, g, 1, e) -> (b, h, 1, e) and the sums after it."""
    values, weights, before = sums
    top = torch.maximum(before, c[:, :, 0]).clamp(min=NONE)  # (b, g, f)
    kept, new = (before - top).exp(), (c[:, :, 0] - top).exp()
    values = values * kept[..., None] + new[..., None] * v.to(values.dtype)
    sums = LogSums(values, weights * kept + new, top)
    with without_autocast(c):
        read = _read(a.unflatten(1, (c.shape[1], -1)), sums, values.dtype)  # (b, g, p, 1, _)
    return (read.num / (read.den + TINY)).flatten(1, 2).to(v.dtype), sums


def start_sums(like: Tensor, width: int) -> LogSums:
    """Of no keys; `like` is (b, g, any, f)."""
    b, g, _, f = like.shape
    zero = like.new_zeros(b, g, f, width)
    return LogSums(zero, zero[..., 0], like.new_full((b, g, f), NONE))


def _tops(c: Tensor) -> Tensor:
    """The largest of each feature: (..., m, f) -> (..., 1, f), without a gradient."""
    return c.detach().amax(-2, keepdim=True).clamp(min=NONE)


def _read(asks: Tensor, sums: LogSums, work: torch.dtype) -> Reading:
    """Queries (..., p, w, f) of sums (..., f, e)."""
    raised = asks + sums.top[..., None, None, :]  # (..., p, w, f)
    top = raised.detach().amax(-1, keepdim=True)  # (..., p, w, 1)
    weights = (raised - top).exp().to(work)
    exact = sums.weights.dtype
    num = weights @ sums.values.to(work)[..., None, :, :]
    return Reading(num.to(exact), weights.to(exact) @ sums.weights[..., None, :, None], top)


def _read_few(asks: Tensor, keys: Tensor, values: Tensor) -> Reading:
    """Queries (..., p, s, f) of keys (..., s, f) and values (..., s, e), through their scores."""
    shift = _tops(keys)  # (..., 1, f)
    raised = asks + shift[..., None, :, :]
    top = raised.detach().amax(-1, keepdim=True)  # (..., p, s, 1)
    weights, features = (raised - top).exp(), (keys - shift).exp()
    weights, features = weights.to(values.dtype), features.to(values.dtype)
    scores = weights @ features.mT[..., None, :, :]  # (..., p, s, s)
    num = (scores @ values[..., None, :, :]).to(asks.dtype)
    return Reading(num, scores.sum(-1, keepdim=True, dtype=asks.dtype), top)


def _inside(asks: Tensor, keys: Tensor, values: Tensor) -> Reading:
    """Pairs of one chunk: asks (b, g, u, p, w, f), keys (b, g, u, w, f), values (b, g, u, w, e).

    From the diagonal up: two neighbouring spans of queries become one, whose right half has also
    read the keys of the left.
    """
    pairs = asks + keys[:, :, :, None]  # (b, g, u, p, w, f)
    top = pairs.detach().amax(-1, keepdim=True).clamp(min=NONE)
    den = (pairs - top).exp().sum(-1, keepdim=True)  # (b, g, u, p, w, 1)
    read, half = Reading(den * values[:, :, :, None], den, top), 1
    while half < keys.shape[3]:
        left = [x.unflatten(3, (-1, 2, half))[..., 0, :, :] for x in (keys, values)]
        right = asks.unflatten(4, (-1, 2, half))[..., 1, :, :].transpose(3, 4)
        spans = Reading(*(x.unflatten(4, (-1, 2, half)) for x in read))
        more = Reading(*(x.transpose(3, 4) for x in _read_few(right, *left)))
        more = _joined(Reading(*(x[..., 1, :, :] for x in spans)), more)
        both = zip(spans, more, strict=True)
        read = Reading(*(torch.stack((x[..., 0, :, :], y), -3).flatten(4, 6) for x, y in both))
        half *= 2
    return read


def _summed(keys: Tensor, values: Tensor) -> LogSums:
    """Keys (..., s, f), values (..., s, e) -> sums over s."""
    top = _tops(keys)  # (..., 1, f)
    features = (keys - top).exp()
    sums = (features.to(values.dtype).mT @ values).to(keys.dtype)
    return LogSums(sums, features.sum(-2), top.squeeze(-2))


def _sums_before(first: LogSums, keys: Tensor, values: Tensor) -> LogSums:
    """Sums before each chunk and after the last: (b, g, u + 1, ...), by doublings."""
    own = _summed(keys, values)
    sums = LogSums(*(torch.cat((x[:, :, None], y), 2) for x, y in zip(first, own, strict=True)))
    reach = 1
    while reach < sums.weights.shape[2]:
        left = LogSums(*(x[:, :, :-reach] for x in sums))
        right = LogSums(*(x[:, :, reach:] for x in sums))
        top = torch.maximum(left.top, right.top)
        kept, new = (left.top - top).exp(), (right.top - top).exp()
        grown = (
            left.values * kept[..., None] + right.values * new[..., None],
            left.weights * kept + right.weights * new,
            top,
        )
        both = zip(sums, grown, strict=True)
        sums, reach = LogSums(*(torch.cat((x[:, :, :reach], y), 2) for x, y in both)), 2 * reach
    return sums


def _joined(a: Reading, b: Reading) -> Reading:
    """Both read by the same queries."""
    top = torch.maximum(a.top, b.top)
    of_a, of_b = (a.top - top).exp(), (b.top - top).exp()
    return Reading(a.num * of_a + b.num * of_b, a.den * of_a + b.den * of_b, top)
