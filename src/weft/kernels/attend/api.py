"""`attend`: attention under a pattern, by the fastest kernel that is correct here.

    dense    the equation itself, O(n·m): the oracle, and the fallback
    sdpa     torch's fused dense attention
    gather   block-sparse in plain PyTorch, any device, trainable
    triton   block-sparse by our own fused kernels, on a GPU in half precision
    flex     FlexAttention from our layouts, on a GPU: what `triton` cannot do, such as a bias
    flash    torch's flash kernel on a GPU, for windows and rows whose real tokens come first

`choose` (planner.py) says which kernel runs, and why; `kernel=` overrides. Queries are the last n
of the m positions (n = m in self-attention, n < m when a decoder continues).
"""

from __future__ import annotations

from typing import Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.kernels.attend.bias import Bias, dense_bias
from weft.kernels.attend.masking import KeyLabels, make_labels
from weft.kernels.attend.parts import AttendOptions, HeadTensors, run_lowered
from weft.kernels.attend.planner import (
    KERNELS,
    Kernel,
    Request,
    choose,
    choose_in_graph,
    graph_spec,
    remember_spec,
)
from weft.kernels.dense import flash
from weft.kernels.dense.reference import dense_attention, expand_heads
from weft.kernels.dense.sdpa import torch_attention
from weft.kernels.device_cache import device_cache
from weft.kernels.dropout import Dropout
from weft.kernels.planner.choice import Choice
from weft.kernels.planner.context import (
    STATE,
    device_of,
    in_graph,
    is_recording,
    note,
    outside_graphs,
)
from weft.patterns import Causal, Full, Pattern
from weft.patterns import pattern as parse
from weft.patterns.derive import mask as dense_mask

_KEPT = 1 << 22  # pairs of a mask that is cached
_READ: dict[str, Pattern] = {}  # patterns given as text
_TEXTS = 256  # texts in that cache, at most

__all__ = ["KERNELS", "Choice", "Kernel", "Request", "attend", "choose"]


class AttendSettings(TypedDict, total=False):
    """The settings of `attend`; it has their defaults."""

    valid: Tensor | None
    segments: Tensor | None
    bias: Bias | None
    scale: float | None
    dropout: float
    kernel: Kernel
    aligned: bool


@overload
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern | str = ...,
    *,
    return_lse: Literal[False] = ...,
    **settings: Unpack[AttendSettings],
) -> Tensor: ...
@overload
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern | str = ...,
    *,
    return_lse: Literal[True],
    **settings: Unpack[AttendSettings],
) -> tuple[Tensor, Tensor]: ...
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern | str = Full(),  # noqa: B008  # an immutable value
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

    `pattern` says which query reads which key, as a value (`Causal() & Sliding(512)`) or as text
    (`"causal() & sliding(512)"`). `valid` (b, m) is True where a key is real. `segments` (b, m)
    numbers the documents packed in a row: a query reads its own document. `bias(head, i, j)`, a
    function of i − j, is added to the scores. Grouped keys: h is a multiple of g. A query that may
    read nothing returns 0 and log-sum-exp −inf. `aligned`: queries and keys are one sequence, whose
    real tokens come first in each row, and the outputs of padding are unused.
    """
    pattern = pattern if isinstance(pattern, Pattern) else _read(pattern)
    _check(q, k, v, valid, segments, kernel, scale)
    kernel = STATE.forced if kernel == "auto" and STATE.forced in KERNELS else kernel
    settings = bias, _scale(q, scale), dropout, kernel, return_lse
    options = AttendOptions(valid, segments, *settings, aligned=aligned and segments is None)
    if STATE.replacement is not None:
        return STATE.replacement(q, k, v, pattern, options)
    each, distinct = _by_head(pattern, q.shape[1])
    if q.shape[2] > k.shape[2] and distinct != [Full()]:
        raise WeftError(
            f"queries are the last of the positions that keys have; got {q.shape[2]} queries and "
            f"{k.shape[2]} keys: another sequence is read under full() alone"
        )
    if len(distinct) == 1:
        out, lse = _attend_one(HeadTensors(q, k, v), distinct[0], options)
    else:
        out, lse = _attend_per_head(HeadTensors(q, k, v), each, options)
    if not return_lse:
        return out
    assert lse is not None  # requested in the options
    return out, lse


def _read(text: str) -> Pattern:
    """The pattern of a text, from a table: a traced graph cannot hold the parser."""
    _remember(text)
    return _READ[text]


@torch.compiler.assume_constant_result
def _remember(text: str) -> bool:
    if not isinstance(text, str) or text not in _READ:
        read = parse(text)
        if len(_READ) >= _TEXTS:
            _READ.clear()
        _READ[text] = remember_spec(read)
    return True


def plan_only(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, options: AttendOptions
) -> Tensor | tuple[Tensor, Tensor]:
    """For `replaced`: note what a call would run, and return zeros."""
    heads, distinct = _by_head(pattern, q.shape[1])
    for own in distinct:
        rows = q if len(distinct) == 1 else q[:, [a for a, each in enumerate(heads) if each == own]]
        note(choose(_request(HeadTensors(rows, k, v), own, options), options.kernel))
    out = q.new_zeros(*q.shape[:3], v.shape[3])
    return (out, q.new_zeros(q.shape[:3], dtype=torch.float32)) if options.lse else out


def _by_head(pattern: Pattern, heads: int) -> tuple[list[Pattern], list[Pattern]]:
    """The pattern of each head, and the distinct ones."""
    if not pattern.per_head:
        return [pattern] * heads, [pattern]
    each = [pattern.head(a, heads) for a in range(heads)]
    return each, list(dict.fromkeys(each))


def _attend_one(
    heads: HeadTensors, pattern: Pattern, options: AttendOptions
) -> tuple[Tensor, Tensor | None]:
    """All heads under one pattern."""
    labels = make_labels(options.valid, options.segments, heads.q.shape[2])
    if torch.compiler.is_compiling():
        chosen = choose_in_graph(_request(heads, pattern, options), options.kernel)
        if chosen is not None:
            return _run(heads, pattern, labels, options, chosen)
    return _planned(heads, pattern, labels, options)


@outside_graphs  # layouts are planned in numpy and cached, outside of any graph
def _planned(
    heads: HeadTensors, pattern: Pattern, labels: KeyLabels | None, options: AttendOptions
) -> tuple[Tensor, Tensor | None]:
    """Plan, then run the kernel."""
    chosen = choose(_request(heads, pattern, options), options.kernel)
    if is_recording():
        note(chosen)
    return _run(heads, pattern, labels, options, chosen)


def _run(
    heads: HeadTensors,
    pattern: Pattern,
    labels: KeyLabels | None,
    options: AttendOptions,
    chosen: Choice,
) -> tuple[Tensor, Tensor | None]:
    """The chosen kernel; without parts, a block-sparse one is the operator of a graph."""
    if chosen.kernel == "flash":
        settings = {"scale": options.scale, "dropout": options.dropout}
        return flash.flash_attention(*heads, pattern, options.valid, **settings), None
    if chosen.kernel == "sdpa":
        return _sdpa(heads, pattern, labels, options)
    if chosen.kernel == "dense":
        return _dense(heads, pattern, labels, options)
    if chosen.lowered is None:
        return _operator(heads, pattern, labels, options)
    return run_lowered(heads, chosen, labels, options._replace(kernel=chosen.kernel))


def _operator(
    heads: HeadTensors, pattern: Pattern, labels: KeyLabels | None, options: AttendOptions
) -> tuple[Tensor, Tensor]:
    from weft.kernels.block_sparse.custom_op import block_sparse  # loads dynamo

    (queries, keys), rate = labels or (None, None), options.dropout
    drop = Dropout.of(rate, heads.q.device)
    seeds = None if drop is None else drop.seeds
    return block_sparse(
        *heads, queries, keys, seeds, graph_spec(pattern), options.scale, options.dropout
    )


def _attend_per_head(
    heads: HeadTensors, patterns: list[Pattern], options: AttendOptions
) -> tuple[Tensor, Tensor | None]:
    """Heads that share a pattern run together."""
    q, k, v = heads.q, *(expand_heads(x, len(patterns)) for x in heads[1:])
    outs, lses, order = [], [], []
    for pattern in dict.fromkeys(patterns):
        own = [a for a, each in enumerate(patterns) if each == pattern]
        share = options
        if options.bias is not None:
            index = torch.tensor(own, device=q.device)
            share = options._replace(bias=_of_heads(options.bias, index))
        out, lse = _attend_one(HeadTensors(q[:, own], k[:, own], v[:, own]), pattern, share)
        outs.append(out)
        lses.append(lse)
        order += own
    back = torch.tensor(order, device=q.device).argsort()
    lse = torch.cat(lses, 1)[:, back] if options.lse else None
    return torch.cat(outs, 1)[:, back], lse


def _of_heads(bias: Bias, index: Tensor) -> Bias:
    return lambda head, i, j: bias(index[head], i, j)


def _dense(
    heads: HeadTensors, pattern: Pattern, labels: KeyLabels | None, options: AttendOptions
) -> tuple[Tensor, Tensor]:
    allowed = _allowed(heads, pattern, labels)
    added = _dense_bias(heads, options)
    return dense_attention(
        *heads, mask=allowed, bias=added, scale=options.scale, dropout=options.dropout
    )


def _sdpa(
    heads: HeadTensors, pattern: Pattern, labels: KeyLabels | None, options: AttendOptions
) -> tuple[Tensor, Tensor | None]:
    q, k, v = heads
    causal = type(pattern) is Causal and q.shape[2] == k.shape[2]
    if labels is None and options.bias is None and (causal or type(pattern) is Full):
        return torch_attention(q, k, v, None, causal, options)
    allowed = _allowed(heads, pattern, labels)
    added = _dense_bias(heads, options)
    added = q.new_zeros(()) if added is None else added.to(q.dtype)
    if allowed is None:
        return torch_attention(q, k, v, added, False, options)
    dead = ~allowed.any(-1)  # (1 or b, 1, n or 1)
    added = added.masked_fill(~(allowed | dead[..., None]), float("-inf"))
    out, lse = torch_attention(q, k, v, added, False, options)
    hidden = None if lse is None else lse.masked_fill(dead, float("-inf"))
    return out.masked_fill(dead[..., None], 0.0), hidden


def _allowed(heads: HeadTensors, pattern: Pattern, labels: KeyLabels | None) -> Tensor | None:
    """(1 or b, 1, n or 1, m), or None where every key may be read."""
    (q, k, _), allowed = heads, None
    if type(pattern) is not Full:
        small = q.shape[2] * k.shape[2] <= _KEPT and not torch.compiler.is_compiling()
        allowed = (_kept_mask if small else dense_mask)(
            pattern, q.shape[2], k.shape[2], device=q.device
        )[None]
    if labels is not None:
        seen = labels.dense()[:, None]  # (b, 1, n or 1, m)
        allowed = seen if allowed is None else allowed & seen
    return allowed


@device_cache(16)
def _kept_mask(pattern: Pattern, n: int, m: int, device: torch.device) -> Tensor:
    """The mask of a short sequence: building it takes longer than the attention."""
    return dense_mask(pattern, n, m, device=device)


def _dense_bias(heads: HeadTensors, options: AttendOptions) -> Tensor | None:
    if options.bias is None:
        return None
    q, k, _ = heads
    n, m = q.shape[2], k.shape[2]
    i = torch.arange(m - n, m, device=q.device)[:, None]
    j = torch.arange(m, device=q.device)[None, :]
    return dense_bias(options.bias, q.shape[1], i, j)[None]  # (1, h, n, m)


def _request(heads: HeadTensors, pattern: Pattern, options: AttendOptions) -> Request:
    q, k, _ = heads
    return Request(
        pattern=pattern,
        batch=q.shape[0],
        heads=q.shape[1],
        n=q.shape[2],
        m=k.shape[2],
        device=device_of(q),
        dtype=q.dtype,
        learning=torch.is_grad_enabled() and any(x.requires_grad for x in heads),
        masked=options.valid is not None or options.segments is not None,
        biased=options.bias is not None,
        dropout=options.dropout,
        lse=options.lse,
        width=q.shape[3],
        aligned=options.aligned,
        graph=in_graph(),
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
    scale: float | None,
) -> None:
    for name, given in (("q", q), ("k", k), ("v", v)):
        if not isinstance(given, Tensor):
            raise WeftError(f"{name} is a tensor (batch, heads, length, width); got {type(given)}")
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
    if scale is not None and scale <= 0:
        raise WeftError(f"scale divides scores by a temperature, so it is above 0; got {scale}")
    if kernel not in KERNELS:
        raise WeftError(f"kernel is one of {', '.join(KERNELS)}; got {kernel!r}")
