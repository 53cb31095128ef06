"""The tensors that make up a model's state, by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from weft.scale.locally import split_buffers
from weft.scale.team import Alone


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers, each tensor once, under its first name."""
    kept = model.state_dict(keep_vars=True).keys()
    found = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: tensor.data for name, tensor in found.items() if name in kept}


def whole_model(model: nn.Module, team: Alone) -> nn.Module:
    """The model with all of its tensors whole, built anew where it is split; on rank 0 alone."""
    if not team.is_team:
        return model
    config: Any = model.config
    with torch.random.fork_rng():
        copy = config.build()
    if (usage := getattr(model, "usage", None)) is not None:
        copy.usage = usage
    tensors = {**named_tensors(model), **split_buffers(model)}
    copy.to(next(iter(tensors.values())).dtype)
    known = named_tensors(copy)
    for name, tensor in tensors.items():  # every rank gives its parts
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        known[name].copy_(whole)
    return copy
