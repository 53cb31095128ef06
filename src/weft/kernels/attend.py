"""`attend`: attention under a pattern, by the fastest kernel that is correct here.

    dense    the equation itself, O(n·m): the oracle, and whatever no other kernel can do
    sdpa     torch's fused dense attention
    gather   block-sparse in plain PyTorch, any device, trainable
    flex     FlexAttention from our layouts, the fused block-sparse kernel on a GPU

`plan` says which kernel would run, and why; `kernel=` overrides. Queries are the last n of the m
positions (n = m in self-attention, n < m when a decoder continues).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from weft.errors import Unsupported, WeftError
from weft.kernels.bias import Bias, dense_bias
from weft.kernels.dense import dense_attention, expand_heads
from weft.kernels.flex import BLOCK as FLEX_BLOCK
from weft.kernels.flex import flex_part
from weft.kernels.gather import gather_attention
from weft.kernels.labels import Labels, make_labels
from weft.kernels.merge import merge
from weft.patterns import Causal, Full, Order, Pattern
from weft.patterns.derive import mask as dense_mask
from weft.patterns.lower import Lowered, Part, lower

Kernel = Literal["auto", "dense", "sdpa", "gather", "flex"]
KERNELS = ("auto", "dense", "sdpa", "gather", "flex")
GATHER_BLOCK = 128
_USUAL = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
_FAST = [SDPBackend.CUDNN_ATTENTION, *_USUAL]
_LARGE = 2048**2  # pairs from which planning pays


@dataclass(frozen=True)
class Plan:
    """Which kernel runs, and why."""

    kernel: str
    reason: str
    lowered: Lowered | None = None


@dataclass(frozen=True)
class Speed:
    """How a kernel compares with fused dense attention: measured, in dense pairs per head."""

    slower: float  # time of one computed pair, relative to a pair of dense attention
    overhead: int  # pairs that the start of one more part costs
    lanes: int  # multiprocessors that share the work


SPEEDS = {"cpu": Speed(1.2, 20_000, 0), "cuda": Speed(2.0, 400_000, 132)}


@dataclass(frozen=True)
class Request:
    """Everything about a call except the numbers in q, k and v."""

    pattern: Pattern
    batch: int
    heads: int
    n: int
    m: int
    device: str
    dtype: torch.dtype
    learning: bool
    masked: bool
    biased: bool
    dropout: float
    lse: bool


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern = Full(),  # noqa: B008  # an immutable value
    *,
    valid: Tensor | None = None,
    segments: Tensor | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    kernel: Kernel = "auto",
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """q (b, h, n, d), k and v (b, g, m, d) -> (b, h, n, d), and log-sum-exp (b, h, n) on request.

    `valid` (b, m) is True where a key is real. `segments` (b, m) numbers the documents packed in a
    row: a query reads its own document. `bias(head, i, j)`, a function of i − j, is added to the
    scores. Grouped keys: h is a multiple of g. A query that may read nothing returns 0 and
    log-sum-exp −inf.
    """
    _check(q, k, v, valid, segments, kernel, return_lse)
    options = _Options(valid, segments, bias, _scale(q, scale), dropout, kernel, return_lse)
    heads = [pattern.head(a, q.shape[1]) for a in range(q.shape[1])]
    distinct = list(dict.fromkeys(heads))
    if q.shape[2] > k.shape[2] and distinct != [Full()]:
        raise WeftError(
            f"queries are the last of the positions that keys have; got {q.shape[2]} queries and "
            f"{k.shape[2]} keys: another sequence is read under full() alone"
        )
    if len(distinct) == 1:
        out, lse = _attend_one(q, k, v, distinct[0], options)
    else:
        out, lse = _attend_per_head(q, k, v, heads, distinct, options)
    return (out, lse) if return_lse else out


def plan(request: Request, kernel: Kernel = "auto") -> Plan:
    """The kernel for a request whose heads share one pattern."""
    if kernel in ("dense", "sdpa"):
        return Plan(kernel, "asked for")
    device = "cuda" if request.device == "cuda" else "cpu"
    speed, lanes = SPEEDS[device], SPEEDS[device].lanes / (request.batch * request.heads)
    block = FLEX_BLOCK if device == "cuda" else GATHER_BLOCK
    if kernel != "auto":
        found = lower(request.pattern, request.n, request.m, block, speed.overhead, lanes)
        return Plan(kernel, "asked for", found)
    sparse = "flex" if device == "cuda" and _flex_can(request) else "gather"
    if type(request.pattern) in (Full, Causal):
        return _dense_plan(
            request, "every earlier key is read" if request.pattern.causal else "every key is read"
        )
    found = lower(request.pattern, request.n, request.m, block, speed.overhead, lanes)
    dense_pairs = request.n * request.m
    price = speed.slower * found.price(block, speed.overhead, lanes)
    share = price / dense_pairs
    if price >= dense_pairs:
        return _dense_plan(request, f"blocks would cost {share:.2f} times dense at this length")
    return Plan(sparse, f"blocks cost {share:.2f} times dense", found)


def _dense_plan(request: Request, why: str) -> Plan:
    if request.lse:
        return Plan("dense", f"{why}; the log-sum-exp is asked for")
    return Plan("sdpa", why)


def _flex_can(request: Request) -> bool:
    return not request.dropout and request.dtype != torch.float64


@dataclass(frozen=True, eq=False)
class _Options:
    valid: Tensor | None
    segments: Tensor | None
    bias: Bias | None
    scale: float
    dropout: float
    kernel: Kernel
    lse: bool


def _attend_one(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, options: _Options
) -> tuple[Tensor, Tensor | None]:
    """All heads under one pattern."""
    labels = make_labels(options.valid, options.segments, q.shape[2])
    chosen = plan(_request(q, k, v, pattern, options), options.kernel)
    if chosen.kernel == "sdpa":
        return _sdpa(q, k, v, pattern, labels, options), None
    if chosen.kernel == "dense":
        return _dense(q, k, v, pattern, labels, options)
    assert chosen.lowered is not None
    if chosen.kernel == "flex":
        if options.dropout:
            raise Unsupported("the flex kernel has no dropout; use kernel='gather' or dropout=0")
        return _run(q, k, v, chosen.lowered, _flex_kernel, labels, options)
    return _run(q, k, v, chosen.lowered, _gather_kernel, labels, options)


def _attend_per_head(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: list[Pattern],
    distinct: list[Pattern],
    options: _Options,
) -> tuple[Tensor, Tensor | None]:
    """Heads that share a pattern run together."""
    k, v = expand_heads(k, len(heads)), expand_heads(v, len(heads))
    outs, lses, order = [], [], []
    for pattern in distinct:
        own = [a for a, each in enumerate(heads) if each == pattern]
        index = torch.tensor(own, device=q.device)
        share = options
        if options.bias is not None:
            share = _Options(**{**vars(options), "bias": _of_heads(options.bias, index)})
        out, lse = _attend_one(q[:, own], k[:, own], v[:, own], pattern, share)
        outs.append(out)
        lses.append(lse)
        order += own
    back = torch.tensor(order, device=q.device).argsort()
    lse = torch.cat(lses, 1)[:, back] if options.lse else None
    return torch.cat(outs, 1)[:, back], lse


def _of_heads(bias: Bias, index: Tensor) -> Bias:
    return lambda head, i, j: bias(index[head], i, j)


def _run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lowered: Lowered,
    kernel: Callable[..., tuple[Tensor, Tensor]],
    labels: Labels | None,
    options: _Options,
) -> tuple[Tensor, Tensor]:
    """Parts merge; the rows apart replace theirs."""
    parts = [_run_part(q, k, v, part, kernel, labels, options) for part in lowered.parts]
    out, lse = merge(parts)
    apart = lowered.apart
    if apart is not None:
        rows = _index(apart.rows, -1, 0, q.device)
        own, own_lse = _run_part(q, k, v, apart, kernel, labels, options)
        out, lse = out.index_copy(2, rows, own), lse.index_copy(2, rows, own_lse)
    return out, lse


def _run_part(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    part: Part,
    kernel: Callable[..., tuple[Tensor, Tensor]],
    labels: Labels | None,
    options: _Options,
) -> tuple[Tensor, Tensor]:
    """Bring q, k and v into the order of the part, attend, and bring the result back."""
    if part.fold > 1:
        return _run_folded(q, k, v, part, kernel, labels, options)
    n, m = q.shape[2], k.shape[2]
    rows, cols = _index(part.rows, n, m - n, q.device), _index(part.cols, m, 0, q.device)
    permuted = rows is not None and len(rows) == n
    q, k, v = _take(q, rows), _take(k, cols), _take(v, cols)
    labels = labels and labels.take(rows, cols)
    out, lse = kernel(q, k, v, part, labels, options.bias, options)
    if permuted:
        back = rows.argsort()
        out, lse = out[:, :, back], lse[:, :, back]
    return out, lse


def _run_folded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    part: Part,
    kernel: Callable[..., tuple[Tensor, Tensor]],
    labels: Labels | None,
    options: _Options,
) -> tuple[Tensor, Tensor]:
    """Residue classes become rows of the batch, and each is a sequence of its own."""
    n, s, bias = q.shape[2], part.fold, options.bias
    if labels is None and part.length * s > n and not part.pattern.causal:
        labels = make_labels(torch.ones_like(q[:, 0, :, 0], dtype=torch.bool), None, n)
    q, k, v = (_fold(x, s) for x in (q, k, v))  # (b·s, h, n / s, d)
    # A bias depends on the distance i − j, which grows s times as fast.
    wide = bias and (lambda head, i, j: bias(head, i * s, j * s))
    out, lse = kernel(q, k, v, part, labels and labels.fold(s), wide, options)
    return _unfold(out, s, n), _unfold(lse[..., None], s, n)[..., 0]


def _fold(x: Tensor, s: int) -> Tensor:
    """(b, h, n, d) -> (b·s, h, n / s, d): residue class r of row a is row a·s + r."""
    x = F.pad(x, (0, 0, 0, -x.shape[2] % s)).unflatten(2, (-1, s))
    return x.permute(0, 3, 1, 2, 4).flatten(0, 1)


def _unfold(x: Tensor, s: int, n: int) -> Tensor:
    """Undo `_fold`."""
    return x.unflatten(0, (-1, s)).permute(0, 2, 3, 1, 4).flatten(2, 3)[:, :, :n]


@lru_cache(maxsize=256)
@torch.inference_mode(False)  # what is kept must serve training as well
def _index(order: Order, count: int, start: int, device: torch.device) -> Tensor | None:
    """Where the order takes its tokens from an axis of `count` tokens; None: as it stands."""
    if type(order) is Order and order.count == count:
        return None
    return torch.as_tensor(order.positions() - start, device=device)


def _take(x: Tensor, index: Tensor | None) -> Tensor:
    """(b, h, n, d) at these indices."""
    return x if index is None else x.index_select(2, index)


def _gather_kernel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    part: Part,
    labels: Labels | None,
    bias: Bias | None,
    options: _Options,
) -> tuple[Tensor, Tensor]:
    return gather_attention(
        q,
        k,
        v,
        part,
        block=GATHER_BLOCK,
        scale=options.scale,
        labels=labels,
        bias=bias,
        dropout=options.dropout,
    )


def _flex_kernel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    part: Part,
    labels: Labels | None,
    bias: Bias | None,
    options: _Options,
) -> tuple[Tensor, Tensor]:
    return flex_part(q, k, v, part, scale=options.scale, labels=labels, bias=bias)


def _dense(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, labels: Labels | None, options: _Options
) -> tuple[Tensor, Tensor]:
    allowed = _allowed(q, k, pattern, labels)
    added = _dense_bias(q, k, options)
    return dense_attention(
        q, k, v, mask=allowed, bias=added, scale=options.scale, dropout=options.dropout
    )


def _sdpa(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, labels: Labels | None, options: _Options
) -> Tensor:
    causal = type(pattern) is Causal and q.shape[2] == k.shape[2]
    grouped = q.shape[1] != k.shape[1]
    settings = {"dropout_p": options.dropout, "scale": options.scale, "enable_gqa": grouped}
    if labels is None and options.bias is None and (causal or type(pattern) is Full):
        # On a GPU cuDNN's kernel is the fastest dense one; it plans anew for every shape.
        order = _FAST if q.is_cuda and q.shape[2] * k.shape[2] >= _LARGE else _USUAL
        with sdpa_kernel(order, set_priority=True):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, **settings)
    allowed = _allowed(q, k, pattern, labels)
    added = _dense_bias(q, k, options)
    if added is not None:
        added = added.to(q.dtype)
        if allowed is not None:
            added = added.masked_fill(~(allowed | ~allowed.any(-1, keepdim=True)), float("-inf"))
    elif allowed is not None:
        added = allowed | ~allowed.any(-1, keepdim=True)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=added, **settings)
    if allowed is None:
        return out
    return out.masked_fill(~allowed.any(-1, keepdim=True), 0.0)


def _allowed(q: Tensor, k: Tensor, pattern: Pattern, labels: Labels | None) -> Tensor | None:
    """(1 or b, 1, n, m), or None where every key may be read."""
    allowed = None
    if type(pattern) is not Full:
        allowed = dense_mask(pattern, q.shape[2], k.shape[2], device=q.device)[None]
    if labels is not None:
        seen = labels.dense()[:, None].expand(-1, -1, q.shape[2], -1)
        allowed = seen if allowed is None else allowed & seen
    return allowed


def _dense_bias(q: Tensor, k: Tensor, options: _Options) -> Tensor | None:
    if options.bias is None:
        return None
    n, m = q.shape[2], k.shape[2]
    i = torch.arange(m - n, m, device=q.device)[:, None]
    j = torch.arange(m, device=q.device)[None, :]
    return dense_bias(options.bias, q.shape[1], i, j)[None]  # (1, h, n, m)


def _request(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, options: _Options) -> Request:
    return Request(
        pattern=pattern,
        batch=q.shape[0],
        heads=q.shape[1],
        n=q.shape[2],
        m=k.shape[2],
        device=q.device.type,
        dtype=q.dtype,
        learning=torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)),
        masked=options.valid is not None or options.segments is not None,
        biased=options.bias is not None,
        dropout=options.dropout,
        lse=options.lse,
    )


def _scale(q: Tensor, scale: float | None) -> float:
    return q.shape[-1] ** -0.5 if scale is None else scale


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor | None,
    segments: Tensor | None,
    kernel: str,
    return_lse: bool,
) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if any(x.dim() != 4 for x in (q, k, v)):
        raise WeftError(f"q, k and v are (batch, heads, length, width); got {shapes}")
    if not q.shape[2] or not k.shape[2]:
        raise WeftError(f"attention needs one query and one key or more; got {shapes}")
    if k.shape[:3] != v.shape[:3]:
        raise WeftError(f"keys and values must agree in batch, heads and length; got {shapes}")
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise WeftError(f"queries and keys must agree in batch and width; got {shapes}")
    if q.shape[1] % k.shape[1]:
        raise WeftError(f"query heads are a multiple of key heads; got {shapes}")
    for name, given in (("valid", valid), ("segments", segments)):
        if given is not None and given.shape != (k.shape[0], k.shape[2]):
            raise WeftError(
                f"{name} is (batch, keys) = {(k.shape[0], k.shape[2])}; got {tuple(given.shape)}"
            )
    if valid is not None and valid.dtype != torch.bool:
        raise WeftError(f"valid is boolean, True where a key is real; got {valid.dtype}")
    if kernel == "sdpa" and return_lse:
        raise Unsupported("torch's sdpa keeps its log-sum-exp to itself; use kernel='dense'")
    if kernel not in KERNELS:
        raise WeftError(f"kernel is one of {', '.join(KERNELS)}; got {kernel!r}")
