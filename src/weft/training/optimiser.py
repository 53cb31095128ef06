"""AdamW, and its state by parameter name.

    m ← β₁m + (1 − β₁)g,  v ← β₂v + (1 − β₂)g²
    w ← w − lr·λ·w − lr · (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)

Paper: Loshchilov, Hutter 2017, https://arxiv.org/abs/1711.05101. torch's fused kernel, which can
also skip a step on the device itself (`found_inf`), without a synchronisation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import WeftError
from weft.training.settings import TrainingSettings


def build_optimiser(model: nn.Module, settings: TrainingSettings) -> torch.optim.AdamW:
    """AdamW over the model's parameters; which of them decay is a setting."""
    # One call of the kernel takes tensors of one mesh, where they are split over devices.
    groups: dict[tuple[Any, bool], list[nn.Parameter]] = {(None, True): [], (None, False): []}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decaying = settings.decay == "all" or is_matrix(name, parameter)
            mesh = getattr(parameter, "device_mesh", None)
            groups.setdefault((mesh, decaying), []).append(parameter)
    decays = {True: settings.weight_decay, False: 0.0}
    device = next(model.parameters()).device
    # A recorded update reads its rate from the device.
    rate = torch.tensor(settings.lr, device=device) if settings.graph else settings.lr
    return torch.optim.AdamW(
        [
            {"params": parameters, "weight_decay": decays[decaying]}
            for (_, decaying), parameters in groups.items()
            if parameters
        ],
        lr=rate,
        betas=settings.betas,
        eps=settings.eps,
        fused=True,
        capturable=settings.graph,
    )


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """The learning rate of the next update."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def is_matrix(name: str, parameter: Tensor) -> bool:
    """Whether a parameter is a matrix of the model: no gain, no bias, no embedding."""
    return parameter.dim() >= 2 and "embedding" not in name.split(".")


def state_tensors(optimiser: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimiser's memory: "parameter/moment" -> tensor."""
    return {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimiser.state.get(parameter, {}).items()
    }


def load_state(
    optimiser: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor]
) -> None:
    """Put back what `state_tensors` gave."""
    parameters = dict(model.named_parameters())
    state: dict[Any, dict[str, Tensor]] = {}
    for path, value in tensors.items():
        name, _, key = path.rpartition("/")
        if name not in parameters:
            raise WeftError(f"the checkpoint has a moment of {name!r}, which the model lacks")
        parameter = parameters[name]
        # `step` is a float32 count on the parameter's device, whatever the parameter's type.
        state.setdefault(parameter, {})[key] = value.to(parameter.device, copy=True)
    optimiser.state.clear()
    optimiser.state.update(state)
