"""What holds for every choice of kernels inside a `with`: noted, forced, assumed or replaced.

    recording()         choices are noted, with the module that asked
    forced("dense")     calls that leave the kernel open take this one
    assumed("cuda")     choices are those of another device or of a compiled graph
    replaced(function)  `attend` is this function: to count its work, or to skip it
    skipping()          recurrences that go token by token return zeros: only choices are wanted

The state is shared by all threads: gradients are computed in others than the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.kernels.planner.choice import Choice

# What `forced` takes: kernels of `attend`, and `torch` for the plain form of a mechanism.
NAMES = ("dense", "sdpa", "gather", "triton", "flex", "flash", "torch")


class _State:
    forced: str | None = None
    device: str | None = None
    graph: bool = False
    replacement: Callable[..., Any] | None = None
    skipping: bool = False
    recorders: tuple[list[Choice], ...] = ()
    places: tuple[str, ...] = ()


STATE = _State()
F = TypeVar("F", bound=Callable[..., Any])


def outside_graphs(function: F) -> F:
    """`torch.compiler.disable` as a decorator that leaves the function its type."""
    return cast(F, torch.compiler.disable(function))


@contextmanager
def _set(**values: Any) -> Iterator[None]:
    before = {name: getattr(STATE, name) for name in values}
    for name, value in values.items():
        setattr(STATE, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(STATE, name, value)


@contextmanager
def recording() -> Iterator[list[Choice]]:
    """A list that every choice made inside is added to, outside of compiled graphs."""
    found: list[Choice] = []
    with _set(recorders=(*STATE.recorders, found)):
        yield found


@contextmanager
def forced(kernel: str) -> Iterator[None]:
    """Calls that leave the kernel open take this one; mechanisms without it choose as usual."""
    if kernel not in NAMES:
        raise WeftError(f"a kernel to force is one of {', '.join(NAMES)}; got {kernel!r}")
    with _set(forced=kernel):
        yield


@contextmanager
def assumed(device: str | None = None, *, graph: bool = False) -> Iterator[None]:
    """Choose as if tensors were on this device, or inside `torch.compile`; for notes alone.

    Kernels of mechanisms that tensors here cannot run are noted and not run.
    """
    with _set(device=device, graph=graph):
        yield


@contextmanager
def replaced(attend: Callable[..., Any]) -> Iterator[None]:
    """`attend` calls this function, with the same arguments."""
    with _set(replacement=attend):
        yield


@contextmanager
def skipping() -> Iterator[None]:
    """Loops over tokens return zeros."""
    with _set(skipping=True):
        yield


@contextmanager
def at(place: str) -> Iterator[None]:
    """Choices made inside are noted with this place."""
    with _set(places=(*STATE.places, place)):
        yield


def device_of(x: Tensor) -> str:
    """The kind of device that choices for x are made for."""
    return x.device.type if STATE.device is None else STATE.device


def in_graph() -> bool:
    """Whether choices are made for a compiled graph."""
    return torch.compiler.is_compiling() or STATE.graph


def is_recording() -> bool:
    """Whether choices are noted now."""
    return not torch.compiler.is_compiling() and len(STATE.recorders) > 0


def note(choice: Choice) -> None:
    """Add a choice to what is being recorded."""
    placed = choice._replace(place=STATE.places[-1] if STATE.places else "")
    for found in STATE.recorders:
        found.append(placed)
