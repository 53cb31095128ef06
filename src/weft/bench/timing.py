"""Seconds per call: cases take turns, so that drift and warm caches affect all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

Call = Callable[[], object]
Name = TypeVar("Name", bound=Hashable)
WARM_UPS = {"cpu": 1, "cuda": 3}
LONGEST_REASON = 300
PATIENCE = 3.0  # seconds: a call that takes longer even when warm is timed once


def forward(module: nn.Module, inputs: tuple[Tensor, ...]) -> Call:
    """A forward pass without gradients."""

    def call() -> object:
        with torch.no_grad():
            return module(*inputs)

    return call


def forward_backward(module: nn.Module, inputs: tuple[Tensor, ...]) -> Call:
    """A forward pass and the gradients of all inputs and parameters."""
    sources = (*inputs, *(p for p in module.parameters() if p.requires_grad))
    wanted = torch.randn_like(inputs[0])

    def call() -> object:
        return torch.autograd.grad(module(*inputs), sources, wanted, allow_unused=True)

    return call


@dataclass
class Timings(Generic[Name]):
    """What `measure` found, by the name of the case."""

    seconds: dict[Name, list[float]] = field(default_factory=dict)
    failed: dict[Name, str] = field(default_factory=dict)  # why a case has no seconds
    uncaptured: dict[Name, str] = field(default_factory=dict)  # why it was timed without a graph


def measure(
    calls: Mapping[Name, Call],
    rounds: int,
    device: str,
    *,
    graph: bool = False,
    progress: Callable[[], None] = lambda: None,
) -> Timings[Name]:
    """Seconds per call, a round of all cases at a time.

    A case that raises is dropped; the others go on. A case that is too slow for several rounds is
    timed by one warm call.
    """
    found: Timings[Name] = Timings()
    ready = dict(calls)
    clock = cuda_clock if device == "cuda" else cpu_clock
    for name, call in calls.items():
        taken, reason = attempt(lambda call=call: _warm(call, clock, WARM_UPS[device]), device)
        if reason:
            found.failed[name] = reason
        elif taken > PATIENCE:
            found.seconds[name] = [taken]
        else:
            continue
        del ready[name]
    if graph:
        _capture(ready, found, device)
    found.seconds |= {name: [] for name in ready}
    for _ in range(rounds):
        for name, call in list(ready.items()):
            taken, reason = attempt(lambda call=call: clock(call), device)
            if reason:
                found.failed[name] = reason
                del ready[name], found.seconds[name]
            else:
                found.seconds[name].append(taken)
        progress()
    return found


def _warm(call: Call, clock: Callable[[Call], float], times: int) -> float:
    """Seconds of the last warm-up call; a slow case is called at most twice."""
    taken = [clock(call)]
    while len(taken) < times or (len(taken) == 1 and taken[0] > PATIENCE):
        taken.append(clock(call))
        if taken[-1] > PATIENCE:
            break
    return taken[-1]


def _capture(ready: dict[Name, Call], found: Timings[Name], device: str) -> None:
    """Replace the calls that can be captured by their graphs."""
    pool = torch.cuda.graph_pool_handle()
    for name, call in list(ready.items()):
        replay, reason = attempt(lambda call=call: captured(call, pool), device)
        if reason:
            found.uncaptured[name] = reason
        else:
            ready[name] = replay


def attempt(call: Callable[[], Any], device: str) -> tuple[Any, str | None]:
    """The result and None, or None and the reason; frees the memory of a failed call."""
    try:
        return call(), None
    except Exception as error:
        reason = why(error)
    # The error is gone here, and with it the frames that held tensors.
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    return None, reason


def cpu_clock(call: Call) -> float:
    """One call by the wall clock."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def cuda_clock(call: Call) -> float:
    """One call between two events on the GPU."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1000


def captured(call: Call, pool: Any) -> Call:
    """The call as a CUDA graph: replaying it costs no launches from Python.

    Graphs of one pool (`torch.cuda.graph_pool_handle`) share memory: results are unused.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS["cuda"]):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        call()
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay


def quartiles(seconds: list[float]) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile."""
    if len(seconds) == 1:
        return seconds[0], seconds[0], seconds[0]
    low, middle, high = quantiles(seconds, n=4, method="inclusive")
    return low, middle, high


def why(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    text = text if len(text) <= LONGEST_REASON else text[:LONGEST_REASON] + "…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
