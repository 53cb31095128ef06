"""The gate before each number: a case that computes something else is not timed.

The output and the gradients of the inputs are compared with the case's reference in fp64, at a
length that the O(n²) reference can afford and at which the same kernels run. Their error may be a
few times that of the reference in the measured precision: rounding, and nothing else.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weft.bench.cases import Case
from weft.bench.plans import planned, signature
from weft.bench.setting import Setting

LENGTHS = {"cpu": (512, 1024, 2048), "cuda": (512, 1024, 2048, 4096)}
FACTOR = 4.0
FP64_TOLERANCE = 1e-10  # where the measured precision is that of the reference


@dataclass(frozen=True)
class GateResult:
    """What was compared, and the result; `reason` is None where the case may be timed."""

    length: int
    kernels: str  # at the measured length
    same_kernels: bool  # whether the check ran the same kernels
    error: float | None = None  # the worse of output and gradient, as a share of its budget
    reason: str | None = None


def check(
    case: Case, module: nn.Module, setting: Setting, n: int, passed: dict[object, GateResult]
) -> GateResult:
    """Compare the case with its reference, as far as it has one.

    `passed` caches results: the same kernels at the same length are compared once.
    """
    inputs = case.inputs(setting, n)
    kernels = signature(planned(module, inputs))
    if not hasattr(module, "reference"):
        return _finite(module, inputs, n, kernels)
    at, same = n, True
    for at in _lengths(setting.device, n):
        same = signature(planned(module, _shorten(inputs, at))) == kernels
        if same:
            break
    key = (case, at, kernels)
    if kernels and key in passed:
        return passed[key]
    errors = compare(module, _shorten(inputs, at))
    reason = next((_reason(what, *found) for what, found in errors.items() if _over(*found)), None)
    worst = max(error / budget for error, budget in errors.values())
    gate = GateResult(at, kernels, same, worst, reason)
    if reason is None:
        passed[key] = gate
    return gate


def compare(module: Any, inputs: tuple[Tensor, ...]) -> dict[str, tuple[float, float]]:
    """Error and budget of the output and of each input's gradient; the module has a reference."""
    exact = copy.deepcopy(module).double()
    wanted = torch.randn_like(inputs[0])
    ours = _run(module, inputs, wanted)
    same = _run(module.reference, inputs, wanted)
    truth = _run(exact.reference, tuple(x.detach().double() for x in inputs), wanted.double())
    names = ["output", *(f"gradient of input {at}" for at in range(len(inputs)))]
    typical = not getattr(module, "exact", True)
    return {
        name: (_error(y, t, typical), _budget(s, t, typical))
        for name, y, s, t in zip(names, ours, same, truth, strict=True)
    }


def _run(
    function: Callable[..., Tensor], inputs: tuple[Tensor, ...], wanted: Tensor
) -> list[Tensor]:
    inputs = tuple(x.detach().requires_grad_() for x in inputs)
    y = function(*inputs)
    return [y.detach(), *torch.autograd.grad(y, inputs, wanted)]


def _error(out: Tensor, exact: Tensor, typical: bool) -> float:
    """The largest error, or that of the median token, as hashes may move a few tokens."""
    by_token = (out.double() - exact).abs().amax(-1)
    error = float(by_token.median() if typical else by_token.max())
    return error if out.isfinite().all() else float("inf")


def _budget(same: Tensor, exact: Tensor, typical: bool) -> float:
    largest = float(exact.abs().max())
    if same.dtype == torch.float64:
        return FP64_TOLERANCE * max(1.0, largest)
    unit = torch.finfo(same.dtype).eps * largest
    return FACTOR * (_error(same, exact, typical) + unit)


def _over(error: float, budget: float) -> bool:
    return not error <= budget


def _reason(what: str, error: float, budget: float) -> str:
    return f"wrong {what}: error {error:.1e} exceeds the rounding budget {budget:.1e}"


def _lengths(device: str, n: int) -> list[int]:
    """Ascending, none above n; n itself where it is short enough."""
    known = LENGTHS[device]
    return [at for at in known if at < n] + [n] * (n <= known[-1])


def _shorten(inputs: tuple[Tensor, ...], n: int) -> tuple[Tensor, ...]:
    """One row of the batch and its first n tokens."""
    return tuple(x.detach()[:1, ..., :n, :] for x in inputs)


def _finite(module: nn.Module, inputs: tuple[Tensor, ...], n: int, kernels: str) -> GateResult:
    with torch.no_grad():
        fine = bool(module(*inputs).isfinite().all())
    return GateResult(n, kernels, True, None, None if fine else "the output is not finite")
