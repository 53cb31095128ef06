"""Scalars for TensorBoard, where the package is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weft.errors import WeftError
from weft.training.progress import Progress
from weft.training.run import Outcome, Run


class TensorBoard(Progress):
    """Writes every number of every row as a scalar under its kind: train/loss, valid/score ..."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as cause:
            raise WeftError(
                "tensorboard=True needs the package: pip install tensorboard; or leave it out, "
                "metrics.jsonl holds the same numbers"
            ) from cause
        self._open, self.folder = SummaryWriter, folder

    def start(self, run: Run, step: int) -> None:
        # What an interrupted run wrote after its checkpoint is hidden, as in metrics.jsonl.
        self._writer = self._open(str(self.folder), purge_step=step + 1)

    def row(self, row: dict[str, Any]) -> None:
        for name, value in row.items():
            if name != "step" and isinstance(value, int | float):
                self._writer.add_scalar(f"{row['kind']}/{name}", value, row["step"])

    def end(self, outcome: Outcome) -> None:
        self._writer.close()
