"""What is to be trained: a run is a row of stages, and a stage is all that the loop needs to know.

The loop knows no tasks. It gets a model's config, an objective, a source of batches and settings;
`weft.training.curriculum.Phase` is the short form in which people write stages down.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from weft.config import read, write
from weft.errors import WeftError
from weft.models import config_from_dict
from weft.models.usage.record import Usage
from weft.objectives import Batch, Objective, ObjectiveConfig
from weft.training.data.source import Source
from weft.training.settings import TrainingSettings


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """One phase of a run, complete."""

    model: Any  # config of the model
    objective: Objective
    source: Source
    valid: Iterable[Batch] | None = None  # every row once per iteration, e.g. Ordered
    settings: TrainingSettings = dataclasses.field(default_factory=TrainingSettings)
    until: float | None = None  # go on to the next stage when validation reaches this score
    name: str = ""
    usage: Usage | None = None  # what is saved beside the weights, so that they can be used

    def __post_init__(self) -> None:
        if self.until is not None and self.valid is None:
            raise WeftError("until waits for a validation score, so the stage needs valid=...")

    def describe(self) -> dict[str, Any]:
        """What this stage is, as plain JSON values."""
        return {
            "name": self.name,
            "model": write(self.model),
            "objective": write(self.objective),
            "source": str(self.source),
            "valid": None if self.valid is None else str(self.valid),
            "data": {
                "training": getattr(self.source, "fingerprint", None),
                "validation": getattr(self.valid, "fingerprint", None),
            },
            "until": self.until,
            "settings": write(self.settings),
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """Stages one after another; weights go from each to the next. Several seeds: several runs."""

    stages: tuple[Stage, ...]
    settings: TrainingSettings | None = (
        None  # seed, device, budget in minutes ...; None: the last stage's
    )

    def __post_init__(self) -> None:
        if not self.stages:
            raise WeftError("a run has at least one stage; got none")
        if self.settings is None:
            last = self.stages[-1].settings
            own = last if len(self.stages) == 1 else dataclasses.replace(last, minutes=None)
            object.__setattr__(self, "settings", own)

    @property
    def filled_settings(self) -> TrainingSettings:
        """The settings, after the default is filled in."""
        assert self.settings is not None
        return self.settings

    @property
    def steps(self) -> int:
        """Updates of all stages, if none ends early."""
        return sum(stage.settings.steps for stage in self.stages)

    def describe(self) -> dict[str, Any]:
        """What is to be trained, as plain JSON values."""
        return {
            "settings": write(self.settings),
            "stages": [stage.describe() for stage in self.stages],
        }


def described(found: Any) -> Any:
    """What `Run.describe` wrote, in this version or an older one, as this one writes it.

    What cannot be read, such as parts that are in no registry, stays as it is.
    """

    def settings(table: Any) -> Any:
        return write(read(TrainingSettings, table, "settings"))

    def stage(table: Any) -> Any:
        own = {"model": write(config_from_dict(table["model"]))}
        own["objective"] = write(read(ObjectiveConfig, table["objective"], "objective"))
        return {**table, **own, "settings": settings(table["settings"])}

    try:
        plain = {"settings": settings(found["settings"]), "stages": [*map(stage, found["stages"])]}
    except WeftError:
        return found
    return json.loads(json.dumps(plain))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a run; `done.json` holds it."""

    status: Literal["done", "interrupted"]
    reason: str | None  # what interrupted it
    steps: int
    phase: int  # the last that was trained, from 0
    seconds: float  # wall time, evaluations and all resumptions included
    tokens: int  # places of all batches, padding included
    score: float | None  # of the last validation
    best_score: float | None  # of the best validation of the last phase
    best_step: int | None
    loss: float | None  # of the last validation
    steps_per_second: float | None  # from the median time of a step, in the last phase
    tokens_per_second: float | None
    peak_bytes: int  # GPU: most memory allocated; CPU: growth of the process
    parameters: int
    model: str  # the folder, inside the run's, with the weights that count: "best" or "last"
