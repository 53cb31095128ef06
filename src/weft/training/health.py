"""Is the training still sound? A loss or gradient that is not finite stops it, with a diagnosis.

The answer stays on the device until someone waits for it anyway; from the first bad step on,
updates are left out, so the weights remain those before it. In float16 an overflow is part of the
method (the scale was too large) and becomes an error only when it repeats.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from weft.errors import WeftError
from weft.training.settings import TrainingSettings

OVERFLOWS = 20  # in a row: the scale has fallen by a million


class NonFinite(WeftError):
    """A loss or a gradient is infinite or not a number."""


class Health:
    """Watches every step; costs no waiting."""

    def __init__(self, device: torch.device, settings: TrainingSettings) -> None:
        self.scaled = settings.precision == "float16"
        self.settings = settings
        self.bad_step = torch.full((), -1, dtype=torch.int64, device=device)
        self.overflows = torch.zeros((), dtype=torch.int64, device=device)

    def watch(self, step: int | Tensor, loss: Tensor, norm: Tensor) -> None:
        """Take note of the mean loss and gradient norm of the update that is about to be made."""
        sound = loss.isfinite() & norm.isfinite()
        self.overflows.copy_(torch.where(sound, 0, self.overflows + 1))
        bad = self.overflows >= OVERFLOWS if self.scaled else ~sound
        self.bad_step.copy_(torch.where(bad & (self.bad_step < 0), step, self.bad_step))

    @property
    def broken(self) -> Tensor:
        """() float32: 1 from the first bad step on."""
        return (self.bad_step >= 0).float()

    def first_bad_step(self) -> int | None:
        """Waits for the device."""
        step = int(self.bad_step)
        return None if step < 0 else step


def diagnosis(
    step: int, lr: float, settings: TrainingSettings, model: nn.Module, again: Callable[[], Tensor]
) -> str:
    """What broke at this step: `again` computes the mean loss of its first part once more."""
    outputs, first = _watched(model, again)
    gradients = {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    norms = {name: gradient.float().norm() for name, gradient in gradients.items()}
    broken = [name for name, norm in norms.items() if not norm.isfinite()]
    weights = [n for n, p in model.named_parameters() if not p.isfinite().all()]
    lines = [
        f"training stopped: loss or gradient not finite at step {step + 1} (lr {lr:.3g}, "
        f"precision {settings.precision}, clip {settings.clip}); the last checkpoint is from "
        "before it",
        f"first output that is not finite: {first or 'none, so the gradient overflowed'}",
        f"first gradient that is not finite: {broken[0] if broken else 'none'} "
        f"({len(broken)} of {len(norms)})",
        *([f"weights that are not finite: {', '.join(weights[:5])}"] if weights else []),
        f"largest outputs: {_largest(outputs)}",
        f"largest gradient norms: {_largest(norms)}",
        f"what may help: {'; '.join(_advice(settings))}",
    ]
    return "\n  ".join(lines)


def _watched(model: nn.Module, again: Callable[[], Tensor]) -> tuple[dict[str, Tensor], str | None]:
    """The largest output of every innermost module, and the first that is not finite."""
    outputs: dict[str, Tensor] = {}
    names = {module: name for name, module in model.named_modules() if not list(module.children())}

    def look(module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor) and output.is_floating_point() and output.numel():
            outputs[names[module]] = output.detach().abs().max().float()

    handles = [module.register_forward_hook(look) for module in names]
    try:
        model.zero_grad(set_to_none=True)
        again().backward()
    finally:
        for handle in handles:
            handle.remove()
    first = next((name for name, top in outputs.items() if not top.isfinite()), None)
    return outputs, first


def _largest(found: dict[str, Tensor], count: int = 3) -> str:
    """The largest finite ones; the others are listed separately."""
    sizes = {name: value.item() for name, value in found.items() if value.isfinite()}
    order = sorted(sizes, key=lambda name: -sizes[name])
    return ", ".join(f"{name} {sizes[name]:.3g}" for name in order[:count]) or "none is finite"


def _advice(settings: TrainingSettings) -> list[str]:
    advice = [f"a lower lr (now {settings.lr:.3g})"]
    if settings.warmup < settings.steps // 20:
        advice.append(f"a longer warm-up (now {settings.warmup} steps)")
    if settings.clip is None or settings.clip > 1.0:
        advice.append(f"clip=1.0 (now {settings.clip})")
    if settings.precision == "float16":
        advice.append("precision='bfloat16', which has the range of float32")
    if settings.precision == "bfloat16":
        advice.append("precision='float32', to see whether rounding is the cause")
    advice.append("a look at the data of this step: infinite inputs, rows without a real token")
    return advice
