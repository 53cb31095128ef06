"""`attend`: attention under a pattern, by the fastest kernel that is correct here.

    dense    the equation itself, O(n·m): the oracle, and whatever no other kernel can do
    sdpa     torch's fused dense attention
    gather   block-sparse in plain PyTorch, any device, trainable
    triton   block-sparse by our own fused kernels, on a GPU in half precision
    flex     FlexAttention from our layouts, on a GPU: what the one above cannot do, such as a bias
    flash    torch's flash kernel on a GPU, for windows and rows whose real tokens stand first

`plan` says which kernel would run, and why; `kernel=` overrides. Queries are the last n of the m
positions (n = m in self-attention, n < m when a decoder continues).
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.errors import Unsupported, WeftError
from weft.kernels import flash
from weft.kernels.bias import Bias, dense_bias
from weft.kernels.block_sparse import WIDTHS
from weft.kernels.dense import dense_attention, expand_heads
from weft.kernels.dropout import Dropout
from weft.kernels.kept import kept
from weft.kernels.labels import Labels, make_labels
from weft.kernels.numbered import number_of
from weft.kernels.parts import Options, run_lowered
from weft.kernels.plan import KERNELS, Kernel, Plan, Request, plan
from weft.kernels.sdpa import torch_attention
from weft.patterns import Causal, Full, Pattern
from weft.patterns.derive import mask as dense_mask

_KEPT = 1 << 22  # pairs of a mask that is kept

__all__ = ["KERNELS", "Kernel", "Plan", "Request", "attend", "plan"]


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
    aligned: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """q (b, h, n, d), k and v (b, g, m, d) -> (b, h, n, d), and log-sum-exp (b, h, n) on request.

    `valid` (b, m) is True where a key is real. `segments` (b, m) numbers the documents packed in a
    row: a query reads its own document. `bias(head, i, j)`, a function of i − j, is added to the
    scores. Grouped keys: h is a multiple of g. A query that may read nothing returns 0 and
    log-sum-exp −inf. `aligned`: queries and keys are one sequence, whose real tokens stand first in
    each row, and no one reads the outputs behind them.
    """
    _check(q, k, v, valid, segments, kernel, return_lse, scale)
    settings = bias, _scale(q, scale), dropout, kernel, return_lse
    options = Options(valid, segments, *settings, aligned=aligned and segments is None)
    heads, distinct = _by_head(pattern, q.shape[1])
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


def _by_head(pattern: Pattern, heads: int) -> tuple[list[Pattern], list[Pattern]]:
    """The pattern of each head, and the distinct ones."""
    if not pattern.per_head:
        return [pattern] * heads, [pattern]
    each = [pattern.head(a, heads) for a in range(heads)]
    return each, list(dict.fromkeys(each))


def _attend_one(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, options: Options
) -> tuple[Tensor, Tensor | None]:
    """All heads under one pattern."""
    labels = make_labels(options.valid, options.segments, q.shape[2])
    simple = type(pattern) in (Full, Causal) and options.kernel == "auto" and not options.lse
    if torch.compiler.is_compiling():
        if _flash_fits(q, k, pattern, options, wanted=True):
            return _flash(q, k, v, pattern, options), None
        number = number_of(pattern)
        ours = number >= 0 and q.shape[2] <= k.shape[2] and fits_a_graph(q, options)
        if simple and not (ours and labels is not None):
            return _sdpa(q, k, v, pattern, labels, options)  # nothing to plan breaks the graph
        if ours:
            from weft.kernels.block_sparse_op import block_sparse  # loads dynamo

            (queries, keys), rate = labels or (None, None), options.dropout
            drop = Dropout.of(rate, q.device)
            seeds = None if drop is None else drop.seeds
            return block_sparse(q, k, v, queries, keys, seeds, number, options.scale, rate)
    return _planned(q, k, v, pattern, labels, options)


def fits_a_graph(q: Tensor, options: Options) -> bool:
    """Whether the operator of our own kernels serves this call inside `torch.compile`."""
    half = q.dtype in (torch.float16, torch.bfloat16)
    plain = options.bias is None and not options.lse
    chosen = options.kernel == "triton" or (options.kernel == "auto" and q.is_cuda and half)
    return chosen and plain and q.shape[3] in WIDTHS


def _flash_fits(
    q: Tensor, k: Tensor, pattern: Pattern, options: Options, *, wanted: bool = False
) -> bool:
    """Whether the flash kernel can do it; with `wanted`, whether it is also the one to take."""
    request = {
        "device": q.device.type,
        "dtype": q.dtype,
        "width": q.shape[3],
        "n": q.shape[2],
        "m": k.shape[2],
        "masked": options.valid is not None or options.segments is not None,
        "aligned": options.aligned,
    }
    if options.bias is not None or options.lse:
        return False
    if not wanted:
        return flash.fits(pattern, **request)
    return options.kernel == "auto" and flash.serves(pattern, dropout=options.dropout, **request)


def _flash(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, options: Options) -> Tensor:
    return flash.flash_attention(
        q, k, v, pattern, options.valid, scale=options.scale, dropout=options.dropout
    )


@torch.compiler.disable  # layouts are planned in numpy and kept, outside of any graph
def _planned(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, labels: Labels | None, options: Options
) -> tuple[Tensor, Tensor | None]:
    """Plan, then run the kernel."""
    chosen = plan(_request(q, k, v, pattern, options), options.kernel)
    if chosen.kernel == "flash":
        if not _flash_fits(q, k, pattern, options):
            raise Unsupported(
                "the flash kernel takes full(), causal() or sliding(w), no bias, half precision on "
                f"a GPU, heads of a multiple of 8 up to {flash.WIDEST}, and rows whose real tokens "
                "stand first (aligned=True); use kernel='auto'"
            )
        return _flash(q, k, v, pattern, options), None
    if chosen.kernel == "sdpa":
        return _sdpa(q, k, v, pattern, labels, options)
    if chosen.kernel == "dense":
        return _dense(q, k, v, pattern, labels, options)
    assert chosen.lowered is not None
    options = options._replace(block=chosen.block, kernel=chosen.kernel)
    if options.dropout and chosen.kernel == "flex":
        raise Unsupported("the flex kernel has no dropout; use kernel='gather' or dropout=0")
    if options.bias is not None and chosen.kernel == "triton":
        raise Unsupported("the triton kernel takes no bias; use kernel='flex' or 'auto'")
    return run_lowered(q, k, v, chosen.lowered, labels, options)


def _attend_per_head(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: list[Pattern],
    distinct: list[Pattern],
    options: Options,
) -> tuple[Tensor, Tensor | None]:
    """Heads that share a pattern run together."""
    k, v = expand_heads(k, len(heads)), expand_heads(v, len(heads))
    outs, lses, order = [], [], []
    for pattern in distinct:
        own = [a for a, each in enumerate(heads) if each == pattern]
        index = torch.tensor(own, device=q.device)
        share = options
        if options.bias is not None:
            share = options._replace(bias=_of_heads(options.bias, index))
        out, lse = _attend_one(q[:, own], k[:, own], v[:, own], pattern, share)
        outs.append(out)
        lses.append(lse)
        order += own
    back = torch.tensor(order, device=q.device).argsort()
    lse = torch.cat(lses, 1)[:, back] if options.lse else None
    return torch.cat(outs, 1)[:, back], lse


def _of_heads(bias: Bias, index: Tensor) -> Bias:
    return lambda head, i, j: bias(index[head], i, j)


def _dense(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, labels: Labels | None, options: Options
) -> tuple[Tensor, Tensor]:
    allowed = _allowed(q, k, pattern, labels)
    added = _dense_bias(q, k, options)
    return dense_attention(
        q, k, v, mask=allowed, bias=added, scale=options.scale, dropout=options.dropout
    )


def _sdpa(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, labels: Labels | None, options: Options
) -> tuple[Tensor, Tensor | None]:
    causal = type(pattern) is Causal and q.shape[2] == k.shape[2]
    if labels is None and options.bias is None and (causal or type(pattern) is Full):
        return torch_attention(q, k, v, None, causal, options)
    allowed = _allowed(q, k, pattern, labels)
    added = _dense_bias(q, k, options)
    added = q.new_zeros(()) if added is None else added.to(q.dtype)
    if allowed is None:
        return torch_attention(q, k, v, added, False, options)
    dead = ~allowed.any(-1)  # (1 or b, 1, n or 1)
    added = added.masked_fill(~(allowed | dead[..., None]), float("-inf"))
    out, lse = torch_attention(q, k, v, added, False, options)
    hidden = None if lse is None else lse.masked_fill(dead, float("-inf"))
    return out.masked_fill(dead[..., None], 0.0), hidden


def _allowed(q: Tensor, k: Tensor, pattern: Pattern, labels: Labels | None) -> Tensor | None:
    """(1 or b, 1, n or 1, m), or None where every key may be read."""
    allowed = None
    if type(pattern) is not Full:
        small = q.shape[2] * k.shape[2] <= _KEPT and not torch.compiler.is_compiling()
        allowed = (_kept_mask if small else dense_mask)(
            pattern, q.shape[2], k.shape[2], device=q.device
        )[None]
    if labels is not None:
        seen = labels.dense()[:, None]  # (b, 1, n or 1, m)
        allowed = seen if allowed is None else allowed & seen
    return allowed


@kept(16)
def _kept_mask(pattern: Pattern, n: int, m: int, device: torch.device) -> Tensor:
    """The mask of a short sequence: made anew it would take longer than the attention."""
    return dense_mask(pattern, n, m, device=device)


def _dense_bias(q: Tensor, k: Tensor, options: Options) -> Tensor | None:
    if options.bias is None:
        return None
    n, m = q.shape[2], k.shape[2]
    i = torch.arange(m - n, m, device=q.device)[:, None]
    j = torch.arange(m, device=q.device)[None, :]
    return dense_bias(options.bias, q.shape[1], i, j)[None]  # (1, h, n, m)


def _request(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, options: Options) -> Request:
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
        width=q.shape[3],
        aligned=options.aligned,
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
    scale: float | None,
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
    if v.shape[3] != q.shape[3] and kernel not in ("dense", "sdpa"):
        raise WeftError(f"values are as wide as keys, except in kernel='dense'; got {shapes}")
    if q.shape[1] % k.shape[1]:
        raise WeftError(f"query heads are a multiple of key heads; got {shapes}")
    for name, given in (("valid", valid), ("segments", segments)):
        if given is not None and given.shape != (k.shape[0], k.shape[2]):
            raise WeftError(
                f"{name} is (batch, keys) = {(k.shape[0], k.shape[2])}; got {tuple(given.shape)}"
            )
    if valid is not None and valid.dtype != torch.bool:
        raise WeftError(f"valid is boolean, True where a key is real; got {valid.dtype}")
    if kernel == "sdpa" and return_lse and q.is_cuda:
        raise Unsupported("torch's sdpa keeps its log-sum-exp to itself on a GPU; use 'flex'")
    if scale is not None and scale <= 0:
        raise WeftError(f"scale divides scores by a temperature, so it is above 0; got {scale}")
    if kernel not in KERNELS:
        raise WeftError(f"kernel is one of {', '.join(KERNELS)}; got {kernel!r}")
