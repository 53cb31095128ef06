"""The tensors that make up a model's state, by name."""

from __future__ import annotations

from torch import Tensor, nn


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers, each tensor once, under its first name."""
    kept = model.state_dict(keep_vars=True).keys()
    found = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: tensor.data for name, tensor in found.items() if name in kept}
