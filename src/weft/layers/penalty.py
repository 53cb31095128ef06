"""Extra terms of the loss that parts of a model ask for themselves.

    loss = objective + Σ penalty() over the modules of the model

A module asks by having a method `penalty()`: a scalar, weighted already, that stands for the last
training forward, or None where there is nothing to add. Spans, reconstruction losses, the balance
of experts and ponder costs are of this kind. A training loop adds `penalties(model)` once to each
forward's loss.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def penalties(model: nn.Module) -> Tensor | None:
    """The penalties of all modules inside a model, summed; None where no module has one."""
    found = [m.penalty() for m in model.modules() if callable(getattr(m, "penalty", None))]
    given = [penalty for penalty in found if penalty is not None]
    return torch.stack(given).sum() if given else None
