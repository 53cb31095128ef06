"""The block-sparse kernels as an operator of torch, so that `torch.compile` keeps one graph.

A graph cannot hold a pattern, so the operator takes its text; the layout is planned, and cached,
when the operator runs, in whichever process that is. Outside a graph `attend` calls the kernels
directly, which costs less and knows more orders: here a pattern whose parts need q, k and v moved
runs in its natural order.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from weft.kernels.attend.masking import KeyLabels
from weft.kernels.attend.planner import Request, in_one_pass
from weft.kernels.block_sparse.lists import KernelStep, steps_of
from weft.kernels.block_sparse.triton import run_steps, run_steps_back
from weft.kernels.dropout import Dropout
from weft.kernels.launch import unit_stride
from weft.patterns import Pattern, pattern


@torch.library.custom_op("weft::block_sparse", mutates_args=())
def block_sparse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    seeds: Tensor | None,
    spec: str,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """(b, h, n, d), (b, g, m, d) twice, labels -> values (b, h, n, d), log-sum-exp (b, h, n)."""
    q, k, v = (unit_stride(x) for x in (q, k, v))
    steps, drop = _steps(q, k, spec), _drop(seeds, dropout)
    return run_steps(q, k, v, steps, scale, _labels(queries, keys), drop)


@block_sparse.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _heads(q), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("weft::block_sparse_back", mutates_args=())
def block_sparse_back(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dout: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    seeds: Tensor | None,
    spec: str,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v."""
    q, k, v, out = (unit_stride(x) for x in (q, k, v, out))
    given = (_steps(q, k, spec), scale, _labels(queries, keys), _drop(seeds, dropout))
    return run_steps_back(q, k, v, out, lse, dout, None, *given, joint=False)


@block_sparse_back.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _heads(q), _heads(k), _heads(v)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, queries, keys, seeds, *ctx.settings = inputs
    ctx.save_for_backward(q, k, v, *output, queries, keys, seeds)


def _backward(ctx: Any, dout: Tensor, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    """The log-sum-exp is for the backward pass only, so `dlse` is not used."""
    q, k, v, out, lse, queries, keys, seeds = ctx.saved_tensors
    grads = block_sparse_back(q, k, v, out, lse, dout, queries, keys, seeds, *ctx.settings)
    return *grads, None, None, None, None, None, None


block_sparse.register_autograd(_backward, setup_context=_setup)


def _steps(q: Tensor, k: Tensor, spec: str) -> tuple[KernelStep, ...]:
    (b, h, n, d), (_, g, m, _) = q.shape, k.shape
    request = Request(
        pattern=_pattern(spec),
        batch=b,
        heads=h,
        n=n,
        m=m,
        device=q.device.type,
        dtype=q.dtype,
        learning=True,
        masked=False,
        biased=False,
        dropout=0.0,
        lse=False,
        width=d,
    )
    return steps_of(*in_one_pass(request), b * g, m, q.device)


@lru_cache(maxsize=512)
def _pattern(spec: str) -> Pattern:
    return pattern(spec)


def _labels(queries: Tensor | None, keys: Tensor | None) -> KeyLabels | None:
    return None if queries is None or keys is None else KeyLabels(queries, keys)


def _drop(seeds: Tensor | None, rate: float) -> Dropout | None:
    return None if seeds is None else Dropout(rate, seeds)


def _heads(x: Tensor) -> Tensor:
    b, h, n, d = x.shape
    return x.new_empty(b, n, h, d).transpose(1, 2)
