"""Which kernel runs a call of `attend`, and why: decided from shapes, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from weft.kernels.flex import BLOCK as FLEX_BLOCK
from weft.patterns import Causal, Full, Pattern
from weft.patterns.lower import Lowered, lower

Kernel = Literal["auto", "dense", "sdpa", "gather", "flex"]
KERNELS = ("auto", "dense", "sdpa", "gather", "flex")
GATHER_BLOCK = 128


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


def plan(request: Request, kernel: Kernel = "auto") -> Plan:
    """The kernel for a request whose heads share one pattern."""
    if kernel in ("dense", "sdpa"):
        return Plan(kernel, "asked for")
    if kernel != "auto":
        return Plan(kernel, "asked for", _lowered(request)[0])
    if type(request.pattern) in (Full, Causal):
        return _dense_plan(request, "no key is left out")
    lowered, price = _lowered(request)
    share = price / (request.n * request.m)
    if share >= 1.0:
        return _dense_plan(request, f"blocks would cost {share:.2f} times dense at this length")
    fused = request.device == "cuda" and _flex_can(request)
    return Plan("flex" if fused else "gather", f"blocks cost {share:.2f} times dense", lowered)


def _lowered(request: Request) -> tuple[Lowered, float]:
    """The cheapest parts, and their price in pairs of dense attention."""
    on_gpu = request.device == "cuda"
    speed, block = SPEEDS["cuda" if on_gpu else "cpu"], FLEX_BLOCK if on_gpu else GATHER_BLOCK
    lanes = speed.lanes / (request.batch * request.heads)
    lowered = lower(request.pattern, request.n, request.m, block, speed.overhead, lanes)
    return lowered, speed.slower * lowered.price(block, speed.overhead, lanes)


def _dense_plan(request: Request, why: str) -> Plan:
    """Torch's fused dense kernel, or what returns the log-sum-exp where it does not."""
    if not request.lse:
        return Plan("sdpa", why)
    if request.device == "cuda":
        if _flex_can(request):
            return Plan("flex", f"{why}; flex returns the log-sum-exp", _lowered(request)[0])
        return Plan("dense", f"{why}; the log-sum-exp is asked for")
    if request.biased or request.dropout:
        return Plan("dense", f"{why}; the log-sum-exp is asked for")
    return Plan("sdpa", why)


def _flex_can(request: Request) -> bool:
    return not request.dropout and request.dtype != torch.float64
