"""Which kernel runs a call of `attend`, and why: decided from shapes, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch

from weft.kernels import flash
from weft.kernels.block_sparse import BLOCKS as TRITON_BLOCKS
from weft.kernels.block_sparse import WIDTHS
from weft.kernels.flex import BLOCKS as FLEX_BLOCKS
from weft.patterns import Causal, Full, Pattern
from weft.patterns.lower import Lowered, lower

Kernel = Literal["auto", "dense", "sdpa", "gather", "flex", "triton", "flash"]
KERNELS = ("auto", "dense", "sdpa", "gather", "flex", "triton", "flash")
GATHER_BLOCK = 128
LISTED = 2**34  # pairs up to which the blocks of full(), a million then, are worth a list
BLOCKS = {"flex": FLEX_BLOCKS, "triton": TRITON_BLOCKS}


@dataclass(frozen=True)
class Plan:
    """Which kernel runs, and why."""

    kernel: str
    reason: str
    lowered: Lowered | None = None
    block: int = GATHER_BLOCK


@dataclass(frozen=True)
class Speed:
    """How a kernel compares with fused dense attention: measured, in dense pairs per head."""

    slower: float  # time of one computed pair, relative to a pair of dense attention
    overhead: int  # pairs that the start of one more part costs
    lanes: int  # multiprocessors that share the work
    small_blocks: float = 1.0  # how much slower a pair is in blocks of 64
    masked: float = 1.0  # how much slower a pair of dense attention is under a mask


# Under a mask torch takes another dense kernel: on an H200, forward 4.0 and backward 3.7 times as
# long as without (8 rows of 1,000 tokens, 8 heads of 64, bfloat16, dropout).
# Blocks of 64: 1.1 times as long for each pair (benchmarks/cases/kernel_settings.py).
SPEEDS = {"cpu": Speed(1.2, 20_000, 0), "cuda": Speed(1.6, 200_000, 132, 1.1, 3.7)}


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
    width: int = 64  # of a head
    aligned: bool = False  # queries and keys are one sequence, real tokens first in each row


@lru_cache(maxsize=512)
def plan(request: Request, kernel: Kernel = "auto") -> Plan:
    """The kernel for a request whose heads share one pattern."""
    if kernel in ("dense", "sdpa", "flash"):
        return Plan(kernel, "asked for")
    if kernel == "auto" and _flash(request):
        padded = "real tokens stand first, so padding needs no mask"
        return Plan("flash", padded if request.masked else "a window that drops weights")
    if kernel != "auto":
        lowered, block, _ = _lowered(request, kernel)
        return Plan(kernel, "asked for", lowered, block)
    kernel = _sparse_kernel(request)
    ours = kernel == "triton" and request.n <= request.m
    listed = type(request.pattern) is not Full or request.n * request.m <= LISTED
    if type(request.pattern) in (Full, Causal) and not (request.masked and ours and listed):
        return _dense_plan(request, "no key is left out")
    lowered, block, price = _lowered(request, kernel)
    share = price / (request.n * request.m) / (_speed(request).masked if ours else 1.0)
    if share >= 1.0:
        return _dense_plan(request, f"blocks would cost {share:.2f} times dense at this length")
    return Plan(kernel, f"blocks cost {share:.2f} times dense", lowered, block)


def _flash(request: Request) -> bool:
    return not (request.biased or request.lse) and flash.serves(
        request.pattern,
        device=request.device,
        dtype=request.dtype,
        width=request.width,
        n=request.n,
        m=request.m,
        masked=request.masked,
        aligned=request.aligned,
        dropout=request.dropout,
    )


def _speed(request: Request) -> Speed:
    return SPEEDS["cuda" if request.device == "cuda" else "cpu"]


def _lowered(request: Request, kernel: str) -> tuple[Lowered, int, float]:
    """The cheapest parts, their block size, and their price in pairs of dense attention."""
    speed = _speed(request)
    lanes = speed.lanes / (request.batch * request.heads)
    choices = []
    for block in BLOCKS.get(kernel, (GATHER_BLOCK,)):
        lowered = lower(request.pattern, request.n, request.m, block, speed.overhead, lanes)
        slower = speed.slower * (1.0 if block == 128 else speed.small_blocks)
        price = slower * lowered.price(block, speed.overhead, lanes)
        choices.append((lowered, block, price))
    return min(choices, key=lambda choice: choice[2])


def _dense_plan(request: Request, why: str) -> Plan:
    """Torch's fused dense kernel, or what returns the log-sum-exp where it does not."""
    if not request.lse:
        return Plan("sdpa", why)
    if request.device == "cuda":
        kernel = _sparse_kernel(request)
        if kernel != "gather":
            lowered, block, _ = _lowered(request, kernel)
            return Plan(kernel, f"{why}; {kernel} returns the log-sum-exp", lowered, block)
        return Plan("dense", f"{why}; the log-sum-exp is asked for")
    if request.biased or request.dropout:
        return Plan("dense", f"{why}; the log-sum-exp is asked for")
    return Plan("sdpa", why)


def _sparse_kernel(request: Request) -> str:
    """Our own kernels where they can, FlexAttention for a bias, gather for the rest."""
    if request.device != "cuda" or request.dtype == torch.float64:
        return "gather"
    half = request.dtype in (torch.float16, torch.bfloat16)
    if half and request.width in WIDTHS and not request.biased:
        return "triton"
    return "gather" if request.dropout else "flex"
