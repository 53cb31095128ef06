"""`plan`: which kernels a pattern, a mixer or a whole model would run, and why.

The choices are those of `kernels/planner`. A module is asked by one forward pass of a copy without
numbers (on torch's meta device), in which attention is planned and skipped; only where a mechanism
looks at numbers does a real copy run instead. Nothing of what was given is changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import WeftError
from weft.kernels.attend.api import plan_only
from weft.kernels.attend.planner import KERNELS, Kernel, Request, choose
from weft.kernels.planner import context
from weft.kernels.planner.choice import Choices
from weft.mixers import MIXERS
from weft.mixers.base import Frame
from weft.patterns import Pattern, pattern

Shape = Sequence[int]


def plan(
    subject: Any,
    *inputs: Tensor | Shape,
    device: str | None = None,
    dtype: torch.dtype | None = None,
    kernel: Kernel = "auto",
    compiled: bool = False,
    training: bool = False,
    **settings: Any,
) -> Choices:
    """The choices of kernels in the order they are made; `print` shows them as a table.

    `subject` and `inputs`, as tensors or shapes, are one of

        a pattern or its text   q (b, h, n, d), further k and v; settings: masked, biased, dropout,
                                lse, aligned, as in `Request`
        a mixer or its text     x (b, n, c); settings of its `Frame`: heads=8, causal=True, ...
        a model or its config   token ids (b, n) or values (b, n, c)
        a module                what its forward takes
        a `Request`             nothing

    `device` and `dtype` ask about others than those of the tensors, also about a GPU where there
    is none; under autocast give its dtype. `compiled`: inside `torch.compile`. `training` says how
    a config is built.
    """
    if kernel not in KERNELS:
        raise WeftError(f"kernel is one of {', '.join(KERNELS)}; got {kernel!r}")
    if isinstance(subject, Tensor):
        raise WeftError("what is asked about comes first: weft.plan('causal()', q) or (model, ids)")
    if isinstance(subject, Request):
        return Choices([choose(subject._replace(graph=compiled or subject.graph), kernel)])
    if not inputs:
        raise WeftError(f"plan needs the shape of an input, such as (1, 4096, 512); got {subject}")
    if isinstance(subject, Pattern) or (isinstance(subject, str) and len(_shape(inputs[0])) == 4):
        given = {"device": device, "dtype": dtype, "compiled": compiled, "kernel": kernel}
        return _of_pattern(pattern(subject), *inputs, **given, **settings)
    if isinstance(subject, nn.Module):
        if settings:
            raise WeftError(f"a module has its settings already; got {', '.join(settings)}")
        where, make = _device_of(subject), _copier(subject)
    else:
        where, make = (
            "cuda" if torch.cuda.is_available() else "cpu",
            _builder(subject, _shape(inputs[0]), settings, training),
        )
    with ExitStack() as stack:
        if kernel != "auto":
            stack.enter_context(context.forced(kernel))
        stack.enter_context(context.assumed(device or where, graph=compiled))
        return _of_module(make, inputs, dtype)


def _of_pattern(
    subject: Pattern,
    q: Tensor | Shape,
    k: Tensor | Shape | None = None,
    v: Tensor | Shape | None = None,
    *,
    device: str | None,
    dtype: torch.dtype | None,
    compiled: bool,
    kernel: Kernel,
    **settings: Any,
) -> Choices:
    """One choice for all heads, or one for each group of heads that share a pattern."""
    unknown = set(settings) - {"masked", "biased", "dropout", "lse", "aligned", "learning"}
    if unknown:
        raise WeftError(f"a request has no setting {', '.join(sorted(unknown))}")
    shapes = _shape(q), _shape(q if k is None else k)
    if any(len(shape) != 4 for shape in shapes):
        raise WeftError(f"q and k are (batch, heads, length, width); got {shapes}")
    (b, heads, n, d), m = shapes[0], shapes[1][2]
    usual = {"learning": True, "masked": False, "biased": False, "dropout": 0.0, "lse": False}
    tensor = q if isinstance(q, Tensor) else torch.empty(0)
    where = device or tensor.device.type
    found = []
    each = [subject.head(a, heads) for a in range(heads)]
    for own in dict.fromkeys(each):
        asked = Request(
            pattern=own,
            batch=b,
            heads=each.count(own),
            n=n,
            m=m,
            device=where,
            dtype=dtype or tensor.dtype,
            width=d,
            graph=compiled,
            **(usual | settings),
        )
        place = "" if own == subject else f"{each.count(own)} heads"
        found.append(choose(asked, kernel)._replace(place=place))
    return Choices(found)


def _of_module(
    make: Callable[[bool], nn.Module], inputs: tuple[Tensor | Shape, ...], dtype: torch.dtype | None
) -> Choices:
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            return _recorded(make(True), inputs, dtype)
        except Exception:  # a mechanism that looks at numbers cannot run without any
            return _recorded(make(False), inputs, dtype)


@torch.no_grad()
def _recorded(
    module: nn.Module, inputs: tuple[Tensor | Shape, ...], dtype: torch.dtype | None
) -> Choices:
    """The choices of one forward pass of a copy, in which attention is skipped."""
    module = module if dtype is None else module.to(dtype)
    first = next(module.parameters(), None)
    like = torch.empty(0) if first is None else first
    given = [_tensor(x, like) for x in inputs]
    _name_places(module)
    with context.recording() as found, context.replaced(plan_only), context.skipping():
        module(*given)
    return Choices(found)


def _name_places(module: nn.Module) -> None:
    """From now on choices are noted with the name of the innermost module that runs."""
    entered: list[ExitStack] = []

    def enter(name: str, part: nn.Module) -> None:
        stack = ExitStack()
        stack.enter_context(context.at(name))
        if getattr(part, "outside_graphs", False) and context.STATE.device == "cuda":
            stack.enter_context(context.assumed("cuda"))  # `torch.compile` leaves it alone
        entered.append(stack)

    for name, part in module.named_modules():
        part.register_forward_pre_hook(lambda part, _, name=name: enter(name, part))
        part.register_forward_hook(lambda *_: entered.pop().close(), always_call=True)


def _copier(module: nn.Module) -> Callable[[bool], nn.Module]:
    """Copies of a module, with or without its numbers."""

    def make(empty: bool) -> nn.Module:
        tensors = [*module.parameters(), *module.buffers()] if empty else []
        memo = {id(x): _without_numbers(x) for x in tensors}
        return copy.deepcopy(module, memo)

    return make


def _without_numbers(x: Tensor) -> Tensor:
    y = torch.empty_like(x, device="meta")
    return nn.Parameter(y, requires_grad=x.requires_grad) if isinstance(x, nn.Parameter) else y


def _builder(
    subject: Any, x: tuple[int, ...], settings: dict[str, Any], training: bool
) -> Callable[[bool], nn.Module]:
    """Modules that a config or a text describes, with or without numbers."""
    config = MIXERS.parse(subject) if isinstance(subject, str) else subject
    if not hasattr(config, "build"):
        raise WeftError(
            f"plan takes a pattern, a mixer, a model, their configs or a Request; got {subject!r}"
        )
    arguments: tuple[Any, ...] = ()
    if getattr(config, "name", None) in MIXERS and isinstance(config, MIXERS[config.name]):
        if len(x) != 3:
            raise WeftError(f"a mixer reads x (batch, length, width); got the shape {x}")
        usual: dict[str, Any] = {"dim": x[2], "heads": 8, "length": x[1]}
        arguments = (Frame(**(usual | settings)),)

    def make(empty: bool) -> nn.Module:
        with torch.device("meta" if empty else "cpu"):
            return config.build(*arguments).train(training)

    return make


def _device_of(module: nn.Module) -> str:
    first = next(module.parameters(), None)
    return "cpu" if first is None else first.device.type


def _shape(x: Tensor | Shape) -> tuple[int, ...]:
    return tuple(x.shape) if isinstance(x, Tensor) else tuple(x)


def _tensor(x: Tensor | Shape, like: Tensor) -> Tensor:
    """An input on the device of the module; of a shape, token ids (b, n) or values (b, n, c)."""
    if isinstance(x, Tensor):
        return x.to(like) if x.is_floating_point() else x.to(like.device)
    if len(x) == 2:
        return torch.zeros(*x, dtype=torch.long, device=like.device)
    return torch.randn(*x, device=like.device, dtype=like.dtype)
