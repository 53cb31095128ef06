"""From an experiment to what the training loop takes: phases become stages, tasks sources."""

from __future__ import annotations

import dataclasses
from typing import Any

from weft.arena.data.examples import Examples
from weft.arena.data.marks import MarkedRows
from weft.arena.data.sample import sample
from weft.arena.experiment.settings import Experiment
from weft.arena.experiment.time_plan import TimePlan
from weft.arena.experiment.usage import usage_of
from weft.arena.grid.grid import sized
from weft.arena.tasks import TASKS, Split
from weft.arena.tasks.sound.units import with_units
from weft.config import changed
from weft.errors import WeftError
from weft.models import Decoder
from weft.models.stack.known_marks import known_marks, unknown_mark
from weft.models.usage.mark_rules import read_rules
from weft.objectives import (
    CausalLM,
    Classify,
    MaskedUnits,
    Match,
    Objective,
    Regress,
    SequenceToSequence,
)
from weft.training.curriculum import Phase, changed_mixer
from weft.training.data.source import Ordered, Shuffled, Source
from weft.training.run import Run, Stage
from weft.training.settings import TrainingSettings

RARELY_PADDED = 1e-3  # share of short documents up to which most batches need no mask

_OBJECTIVES = {
    "classify": Classify(),
    "match": Match(),
    "regress": Regress(),
    "language": CausalLM(),
    "translate": SequenceToSequence(),
}


def objective_of(experiment: Experiment) -> Objective:
    """What an experiment says, or else what the task's own models learn."""
    return experiment.objective or own_objective(experiment.task)


def own_objective(task: Any) -> Objective:
    """What the models of a task learn where nothing else is said."""
    own: Any = Classify(metric="gini") if task.metric == "gini" else _OBJECTIVES[task.kind]
    return own


def model_of(experiment: Experiment) -> Any:
    """The config of the model that the task is scored with."""
    return objective_of(experiment).build(*experiment.model.bound(experiment.task))


def baselines_of(experiment: Experiment) -> dict[str, float]:
    """The task's, where they are in the metric that the experiment is scored by."""
    task = experiment.task
    return task.baselines() if objective_of(experiment).metric == task.metric else {}


def run_of(experiment: Experiment, plan: TimePlan | None = None) -> Run:
    """The stages of an experiment, with their data loaded; `plan`: what fits into its minutes."""
    if not experiment.phase:
        own = experiment if plan is None else plan.applied(experiment)
        return Run(stages=(_stage(own, Phase(), own.training, plan and plan.valid_rows),))
    stages = [
        _stage(in_phase(experiment, phase, f"phase[{i}]"), phase, phase.over(experiment.training))
        for i, phase in enumerate(experiment.phase)
    ]
    return Run(stages=tuple(stages), settings=experiment.training)


def split_of(experiment: Experiment, split: Split, rows: int | None = None) -> Ordered:
    """All rows of a split of the experiment's task, or a sample of this many."""
    own = sample(rows_of(experiment, split), rows)
    return Ordered(rows=own, batch_size=experiment.training.batch)


def rows_of(experiment: Experiment, split: Split) -> Any:
    """A split of the experiment's task, with the marks that its model takes."""
    return with_targets(with_marks(experiment.task.load(split), experiment), experiment)


def with_targets(rows: Any, experiment: Experiment) -> Any:
    """Rows, or a source, with what the objective predicts where the task does not say it."""
    objective = objective_of(experiment)
    if not isinstance(objective, MaskedUnits):
        return rows
    return with_units(rows, experiment.task, objective, model_of(experiment))


def with_marks(rows: Any, experiment: Experiment) -> Any:
    """Rows, or a source, with those marks of its data and of the rules that the model takes.

    Contenders of a comparison read the same data: a mark that one does not know is left off.
    """
    if not experiment.marks and not getattr(rows, "marks", ()):
        return rows
    names = marks_taken(model_of(experiment), objective_of(experiment))
    both = experiment.task.kind == "match"
    return MarkedRows(rows, read_rules(experiment.marks), names, both=both)


def marks_taken(model: Any, objective: Any) -> set[str]:
    """The marks that this model (its config) takes when it learns this objective."""
    side = getattr(model.trunk, "encoder", model.trunk)
    if not getattr(objective, "takes_marks", True) or not hasattr(side, "stack"):
        return set()
    return known_marks(side.stack.mixers, causal=isinstance(side, Decoder))


def check_marks(experiment: Experiment) -> None:
    """Refuse rules for marks that no mixer of the model knows: `weft train` trains one alone."""
    if not experiment.marks:
        return
    taken = marks_taken(model_of(experiment), objective_of(experiment))
    stack = getattr(experiment.model.part, "stack", None)
    for name in experiment.marks:
        if name not in taken:
            raise WeftError(unknown_mark(name, list(stack.mixers) if stack else []))


def in_phase(experiment: Experiment, phase: Phase, where: str = "phase") -> Experiment:
    """The experiment with what differs in a phase, but for its training."""
    task, model = experiment.task, experiment.model
    if isinstance(phase.task, dict):
        task = changed(task, phase.task, f"{where}.task")
    elif phase.task is not None:
        task = TASKS.parse(phase.task)
    if phase.model is not None:
        model = changed(model, phase.model, f"{where}.model")
    if phase.mixer is not None:
        mixer = changed_mixer(model.part.stack.mixer, phase.mixer)
        model = changed(model, {"mixer": mixer}, f"{where}.model")
    return dataclasses.replace(
        experiment,
        task=sized(task, phase.length),
        model=model,
        objective=phase.objective or experiment.objective,
    )


def _stage(
    experiment: Experiment,
    phase: Phase,
    settings: TrainingSettings,
    valid_rows: int | None = None,
) -> Stage:
    model, objective = model_of(experiment), objective_of(experiment)
    return Stage(
        model=model,
        objective=objective,
        source=_source(experiment, settings),
        valid=split_of(experiment, "valid", valid_rows),
        settings=settings,
        until=phase.until,
        name=phase.name,
        usage=usage_of(experiment, model, objective, marks_taken(model, objective)),
    )


def _source(experiment: Experiment, settings: TrainingSettings) -> Source:
    """The task's training split in random order, or what it makes while a model trains."""
    task, seed = experiment.task, experiment.training.seed
    drawn = task.stream(settings.batch) if hasattr(task, "stream") else None
    if drawn is not None:
        return with_targets(with_marks(drawn, experiment), experiment)
    # Recorded and compiled updates want few shapes: parts are cut from batches of one width.
    rows = task.load("train")
    fixed = (settings.graph or settings.compile) and _often_padded(rows)
    rows = dataclasses.replace(rows, fixed=fixed)
    rows = with_targets(with_marks(rows, experiment), experiment)
    return Shuffled(rows=rows, batch_size=settings.batch, seed=seed)


def _often_padded(rows: Examples) -> bool:
    """Whether most batches have padding; where few do, the others need not carry a mask for it."""
    if (share := getattr(rows, "padded_share", None)) is not None:
        return share > RARELY_PADDED
    documents = [each for each in (rows.rows, rows.second) if each is not None]
    return any((each.lengths < rows.length).mean() > RARELY_PADDED for each in documents)
