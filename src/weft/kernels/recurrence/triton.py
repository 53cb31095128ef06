"""Recurrences by one call: our own Triton kernels, and torch's LSTM and GRU.

A program of ours walks over the tokens of one row with some of its channels, so time is n steps of
some hundred cycles. float32 alone: states are kept in it (`scan.py` has the gradients).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from weft.kernels.launch import on_grid, unit_stride
from weft.kernels.planner.context import STATE
from weft.kernels.planner.fast import FastKernel, Rule

CHANNELS = 32  # of one program that takes token after token
STAGES = 8  # tokens that it fetches ahead, itself included
TILE = (64, 16)  # tokens and channels that the linear recurrence takes at a time
TILE_STAGES = 3
WARPS = 4  # of the linear recurrence
_CUDNN_BFLOAT16 = 91300  # the first cuDNN whose recurrences take it


FUSED = FastKernel("recurrence", dtypes=(torch.float32,))


def can_fuse(*tensors: Tensor, rules: tuple[Rule, ...] = ()) -> bool:
    """Whether the kernels take these tensors, and further rules of the caller hold."""
    filled = Rule(all(x.numel() > 0 for x in tensors), "takes one token or more")
    return FUSED.takes(*tensors, rules=(filled, *rules))


def fused_linear(a: Tensor, b: Tensor, start: Tensor, *, back: bool = False) -> Tensor:
    """h_t = a_t · h_(t−1) + b_t; back: h_t = a_(t+1) · h_(t+1) + b_t: (b, n, c)."""
    from weft.kernels.recurrence.kernels import linear_kernel

    a, b, start = unit_stride(a.expand_as(b)), unit_stride(b), start.contiguous()
    batch, n, c = b.shape
    h = b.new_empty(b.shape)
    time, channels = TILE
    settings = {"TIME": time, "CHANNELS": channels, "STAGES": TILE_STAGES, "BACK": back}
    grid = (batch, -(-c // channels))
    sizes = (*a.stride()[:2], *b.stride()[:2], n, c)
    on_grid(linear_kernel, grid)(a, b, start, h, *sizes, **settings, num_warps=WARPS)
    return h


def fused_sru(inputs: tuple[Tensor, ...], start: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
    """c_t = f c + (1 − f) new, f = σ(f_t + w c): inputs new and f (b, n, c), weights w (c,)."""
    from weft.kernels.recurrence.kernels import sru_kernel

    return _walk(sru_kernel, inputs, start, weights)


def fused_brc(inputs: tuple[Tensor, ...], start: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
    """h_t of a bistable cell: inputs (a, c) (b, n, 2c), new (b, n, c), weights (w_a, w_c) (2c,)."""
    from weft.kernels.recurrence.kernels import brc_kernel

    return _walk(brc_kernel, inputs, start, weights)


def _walk(
    kernel: Any, inputs: tuple[Tensor, ...], start: Tensor, weights: tuple[Tensor, ...]
) -> Tensor:
    """One token after another: (b, n, c)."""
    first, second = map(unit_stride, inputs)
    (batch, c), n = start.shape, first.shape[1]
    h = start.new_empty(batch, n, c)
    tensors = (first, second, weights[0].contiguous(), start.contiguous(), h)
    sizes = (*first.stride()[:2], *second.stride()[:2], n, c)
    grid = (batch, -(-c // CHANNELS))
    kernel[grid](*tensors, *sizes, CHANNELS=CHANNELS, STAGES=STAGES, num_warps=1)
    return h


def torch_rnn(
    run: Callable[..., Any], x: Tensor, memory: tuple[Tensor, ...], weights: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """`torch.lstm` or `torch.gru` of one layer: x (b, n, c), memory (b, c) each -> y, memory."""
    if STATE.skipping:
        return x.new_zeros(*x.shape[:2], memory[0].shape[-1]), memory
    given, work = x.dtype, _rnn_dtype(x)
    if x.is_cuda and given == torch.bfloat16:  # torch lays out other precisions by itself
        x, weights = x.to(work), _contiguous(weights, work)
    hx = [part[None].to(work).contiguous() for part in memory]
    # cuDNN keeps what gradients need in training only, and an evaluated model may want them too.
    settings = (len(weights) > 2, 1, 0.0, torch.is_grad_enabled(), False, True)
    y, *after = run(x, hx if len(hx) > 1 else hx[0], list(weights), *settings)
    return y.to(given), tuple(part[0].to(given) for part in after)


def _rnn_dtype(x: Tensor) -> torch.dtype:
    """float32 where cuDNN does not take bfloat16: torch would go token by token."""
    taken = (torch.backends.cudnn.version() or 0) >= _CUDNN_BFLOAT16
    return torch.float32 if x.is_cuda and x.dtype == torch.bfloat16 and not taken else x.dtype


def _contiguous(weights: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The weights contiguous in one buffer, as cuDNN reads them."""
    flat = torch.cat([weight.flatten() for weight in weights]).to(dtype)
    parts = flat.split([weight.numel() for weight in weights])
    return [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]
