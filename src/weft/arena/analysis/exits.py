"""What a rule of early exit gives and saves, on the rows of a split."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from weft.errors import WeftError
from weft.models import EarlyExitModule
from weft.models.exits.early_exit import held_out
from weft.models.exits.policy import EXITS, ExitPolicy
from weft.objectives import Batch
from weft.training.precision import Precision
from weft.training.settings import PrecisionName


@dataclass(frozen=True)
class ExitScore:
    """A model that rows leave early, beside itself without that."""

    exit: str  # the rule, as it was fitted
    score: float  # accuracy of the rows where they left
    full: float  # accuracy of the last exit
    agreement: float  # share of rows that are answered as by the last exit
    layers: float  # that a row runs, on average
    of: int  # layers there are
    count: int

    def row(self) -> dict[str, Any]:
        """Flat, for a row of metrics."""
        return asdict(self)


@torch.no_grad()
def exit_score(
    model: nn.Module,
    policy: str | ExitPolicy,
    fit: Iterable[Batch],
    source: Iterable[Batch],
    precision: PrecisionName = "float32",
) -> ExitScore:
    """Fit a rule on the batches of `fit`, held-out rows, and let those of `source` leave by it."""
    if not isinstance(model, EarlyExitModule):
        raise WeftError(
            "rows leave early through classifiers between layers, and this model has none; train "
            'it with the objective early_exit: [[phase]] objective = "early_exit"'
        )
    if model.config.classes < 2:
        raise WeftError("agreement and accuracy are of classes; this model gives one number")
    device = next(model.parameters()).device
    rule = EXITS.parse(policy) if isinstance(policy, str) else policy
    sums, rows = torch.zeros(4, dtype=torch.float64), 0  # right, right of all layers, same, layers
    model.eval()
    with Precision(precision, device).autocast():
        rule = rule.fitted(*held_out(model, fit))
        for batch in source:
            batch = batch.to(device)
            found = model.leave(batch.x, rule, **batch.given)
            answer, full = found.scores.argmax(-1), model(batch.x, **batch.given).argmax(-1)
            right, whole = answer == batch.y, full == batch.y  # (b,)
            sums += torch.stack((right, whole, answer == full, found.layers), dim=1).sum(0).cpu()
            rows += len(batch)
    right, whole, same, layers = (sums / max(rows, 1)).tolist()
    total = len(model.trunk.stack.layers)
    return ExitScore(str(rule), right, whole, same, layers, total, rows)
