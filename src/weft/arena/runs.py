"""From an experiment to what the training loop takes: phases become stages, tasks sources."""

from __future__ import annotations

import dataclasses
from typing import Any

from weft.arena.grid import sized
from weft.arena.settings import Experiment
from weft.arena.tables import changed
from weft.arena.tasks import TASKS, Split
from weft.errors import WeftError
from weft.mixers import MIXERS
from weft.objectives import (
    OBJECTIVES,
    CausalLM,
    Classify,
    Head,
    Match,
    Objective,
    SequenceToSequence,
)
from weft.registry import suggest
from weft.training.curriculum import Phase, changed_mixer
from weft.training.run import Run, Stage
from weft.training.settings import Settings
from weft.training.source import Ordered, Shuffled, Source

_OBJECTIVES = {
    "classify": Classify(),
    "match": Match(),
    "language": CausalLM(),
    "translate": SequenceToSequence(),
}


def objective_of(task: Any, spec: str = "") -> Objective:
    """What an experiment's `objective` says, or else what the task's own models learn."""
    return OBJECTIVES.parse(spec) if spec else _OBJECTIVES[task.kind]


def model_of(experiment: Experiment) -> Any:
    """The config of the model that the task is scored with."""
    task = TASKS.parse(experiment.task)
    objective = objective_of(task, experiment.objective)
    return _model(experiment, task, MIXERS.parse(experiment.mixer), objective)


def baselines_of(experiment: Experiment) -> dict[str, float]:
    """The task's, where they are in the metric that the experiment is scored by."""
    task = TASKS.parse(experiment.task)
    same = objective_of(task, experiment.objective).metric == task.metric
    return task.baselines() if same else {}


def run_of(experiment: Experiment) -> Run:
    """The stages of an experiment, with their data loaded."""
    if not experiment.phases:
        return Run(stages=(_stage(experiment, Phase(), experiment.training),))
    stages = [
        _stage(experiment, phase, phase.over(experiment.training)) for phase in experiment.phases
    ]
    return Run(stages=tuple(stages), settings=experiment.training)


def split_of(experiment: Experiment, split: Split) -> Ordered:
    """All rows of a split of the experiment's task."""
    rows = TASKS.parse(experiment.task).load(split)
    return Ordered(rows=rows, batch_size=experiment.training.batch)


def _stage(experiment: Experiment, phase: Phase, settings: Settings) -> Stage:
    task = _phase_task(experiment.task, phase)
    mixer = MIXERS.parse(experiment.mixer)
    if phase.mixer is not None:
        mixer = changed_mixer(mixer, phase.mixer)
    if phase.model is not None:
        model = changed(experiment.model, phase.model, "phase.model")
        experiment = dataclasses.replace(experiment, model=model)
    objective = objective_of(task, phase.objective or experiment.objective)
    return Stage(
        model=_model(experiment, task, mixer, objective),
        objective=objective,
        source=_source(task, settings, experiment.training.seed),
        valid=Ordered(rows=task.load("valid"), batch_size=settings.batch),
        settings=settings,
        until=phase.until,
        name=phase.name,
    )


def _source(task: Any, settings: Settings, seed: int) -> Source:
    """The task's training split in random order, or what it makes while a model trains."""
    drawn = task.stream(settings.batch) if hasattr(task, "stream") else None
    if drawn is not None:
        return drawn
    # Recorded and compiled updates want few shapes: parts are cut from batches of one width.
    fixed = settings.graph or settings.compile
    rows = dataclasses.replace(task.load("train"), fixed=fixed)
    return Shuffled(rows=rows, batch_size=settings.batch, seed=seed)


def _phase_task(spec: str, phase: Phase) -> Any:
    task = TASKS.parse(phase.task if isinstance(phase.task, str) else spec)
    if isinstance(phase.task, dict):
        known = [field.name for field in dataclasses.fields(task) if field.init]
        for name in phase.task:
            if name not in known:
                raise WeftError(f"{task.name} has no setting {name!r}; {suggest(name, known)}")
        task = dataclasses.replace(task, **phase.task)
    return sized(str(task), phase.length)


def _model(experiment: Experiment, task: Any, mixer: Any, objective: Objective) -> Any:
    setting = experiment.model
    head = Head(
        classes=task.classes or 2,
        pool=setting.pool,
        hidden=setting.head_hidden,
        trimmed=setting.trimmed,
        tied=setting.tied,
        output=setting.head_output(),
    )
    return objective.build(setting.trunk(task, mixer), head)
