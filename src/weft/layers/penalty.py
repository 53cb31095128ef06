"""Extra loss terms that modules of a model contribute.

    loss = objective + Σ penalty() over the modules of the model

A module contributes by having a method `penalty()`: a scalar, already weighted, for the last
training forward, or None where there is nothing to add. Examples: spans, reconstruction losses, the
balance of experts, ponder costs. A training loop adds `penalties(model)` once to the loss of each
forward pass.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def penalties(model: nn.Module) -> Tensor | None:
    """The penalties of all modules inside a model, summed; None where no module has one."""
    methods: list[Callable[[], Tensor | None] | None]
    methods = [getattr(module, "penalty", None) for module in model.modules()]
    found = [method() for method in methods if callable(method)]
    terms = [term for term in found if term is not None]
    return torch.stack(terms).sum() if terms else None
