"""Trackers: the numbers of a training, also sent to TensorBoard, trackio or Weights & Biases.

    [training]
    trackers = ["tensorboard", "trackio", "wandb"]

One protocol for all of them: `log(values, step)` and `finish()`. `metrics.jsonl` holds the same
numbers in any case, so a tracker is never needed. One of your own registers a function
`open(folder, run, step)` in TRACKERS, from a plug-in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from weft.errors import WeftError, suggest
from weft.training.progress import Progress
from weft.training.run import Outcome, Run

PROJECT = "weft"


class Tracker(Protocol):
    """Where numbers go."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Numbers by name (train/loss, valid/score) at an update."""
        ...

    def finish(self) -> None:
        """Training ended, or was interrupted."""
        ...


class Tracking(Progress):
    """Sends every number of every row to a tracker, under the row's kind: train/loss ..."""

    def __init__(self, name: str, folder: Path) -> None:
        if name not in TRACKERS:
            raise WeftError(f"no tracker named {name!r}; {suggest(name, TRACKERS)}")
        self.open, self.folder = TRACKERS[name], folder
        self.tracker: Tracker | None = None

    def start(self, run: Run, step: int) -> None:
        self.tracker = self.open(self.folder, run, step)

    def row(self, row: dict[str, Any]) -> None:
        named = {
            f"{row['kind']}/{name}": value
            for name, value in row.items()
            if name != "step" and isinstance(value, int | float)
        }
        if self.tracker is not None and named:
            self.tracker.log(named, row["step"])

    def end(self, outcome: Outcome) -> None:
        if self.tracker is not None:
            self.tracker.finish()


class TensorBoard:
    """Scalars in the run's folder."""

    def __init__(self, folder: Path, run: Run, step: int) -> None:
        module = package("torch.utils.tensorboard", "tensorboard")
        # What an interrupted run wrote after its checkpoint is hidden, as in metrics.jsonl.
        self.writer = module.SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Each number as a scalar."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def finish(self) -> None:
        """Write what is buffered."""
        self.writer.close()


class Hosted:
    """A package that follows wandb's interface: `init` gives a run with `log` and `finish`."""

    def __init__(self, module: Any, folder: Path, run: Run, **further: Any) -> None:
        settings = run.describe()
        self.run = module.init(
            project=PROJECT, name=folder.name, config=settings, resume="allow", **further
        )

    def log(self, values: Mapping[str, float], step: int) -> None:
        """All numbers of a step together."""
        self.run.log(values, step=step)

    def finish(self) -> None:
        """Send what is left."""
        self.run.finish()


def trackio(folder: Path, run: Run, step: int) -> Tracker:
    """A local board: `trackio show --project weft`."""
    return Hosted(package("trackio", "trackio"), folder, run)


def wandb(folder: Path, run: Run, step: int) -> Tracker:
    """Weights & Biases; a run that goes on has the identity that it had."""
    own = sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    return Hosted(package("wandb", "wandb"), folder, run, id=own, dir=str(folder))


TRACKERS: dict[str, Callable[[Path, Run, int], Tracker]] = {
    "tensorboard": TensorBoard,
    "trackio": trackio,
    "wandb": wandb,
}


def package(module: str, name: str) -> Any:
    """An optional package, or how to get it."""
    try:
        return import_module(module)
    except ImportError as cause:
        raise WeftError(
            f"trackers = [{name!r}] needs the package: pip install {name}; or leave it out, "
            "metrics.jsonl holds the same numbers"
        ) from cause
