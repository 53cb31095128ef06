"""Seconds per call: cases take turns, so that drift and warm caches fall on all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

Call = Callable[[], object]
Name = TypeVar("Name", bound=Hashable)
WARM_UPS = {"cpu": 1, "cuda": 3}


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


def measure(
    calls: Mapping[Name, Call],
    rounds: int,
    device: str,
    *,
    graph: bool = False,
    progress: Callable[[], None] = lambda: None,
) -> tuple[dict[Name, list[float]], dict[Name, str], dict[Name, str]]:
    """Seconds by name; why a case has none; and why a case was not captured as a graph.

    A case that raises leaves the turns; the others go on.
    """
    failed: dict[Name, str] = {}
    uncaptured: dict[Name, str] = {}
    clock = cuda_clock if device == "cuda" else cpu_clock
    ready: dict[Name, Call] = {}
    pool = torch.cuda.graph_pool_handle() if graph else None
    for name, call in calls.items():
        try:
            for _ in range(WARM_UPS[device]):
                call()
            ready[name] = call
        except Exception as error:
            failed[name] = why(error)
            release(device)
        if graph and name in ready:
            try:
                ready[name] = captured(call, pool)
            except Exception as error:
                uncaptured[name] = why(error)
                release(device)
    seconds: dict[Name, list[float]] = {name: [] for name in ready}
    for _ in range(rounds):
        for name in list(ready):
            try:
                seconds[name].append(clock(ready[name]))
            except Exception as error:
                failed[name] = why(error)
                del ready[name], seconds[name]
                release(device)
        progress()
    return seconds, failed, uncaptured


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


def captured(call: Call, pool: object) -> Call:
    """The call as a CUDA graph: replaying it costs no launches from Python.

    Graphs of one pool share their memory: no one reads a result after the replay.
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


def release(device: str) -> None:
    """Give back what a failed case still holds."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def why(error: BaseException) -> str:
    """An error in one line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:240]}" if text else type(error).__name__
