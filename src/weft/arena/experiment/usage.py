"""What is saved beside the weights of an experiment's model, so that it can be used anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weft.arena.experiment.settings import Experiment, located
from weft.arena.tasks.table.numbers import Numbers
from weft.files import read_text
from weft.models import Classifier, EarlyExit, LanguageModel, Matcher
from weft.models.usage.inputs import input_of
from weft.models.usage.record import TOKENIZER, Label, Usage

BYTES = "bytes"
_COLUMNS = ("text", "second", "global_text", "label")


def usage_of(experiment: Experiment, model: Any, objective: Any, taken: set[str]) -> Usage:
    """Labels, tokenizer and text settings of the task; `taken`: the marks that the model takes."""
    task = experiment.task
    tokens = getattr(task, "tokens", "none")
    plain = tokens in (BYTES, "none") or input_of(tokens) is not None
    file = None if plain else read_text(Path(tokens))
    columns = {name: getattr(task, name, None) for name in _COLUMNS}
    ruled = bool(columns["global_text"] or getattr(task, "global_after", ""))
    numbers = getattr(task, "numbers", None)
    standard: dict[str, Any] = {}
    if isinstance(numbers, Numbers):
        standard = {"offset": numbers.offset, "scale": numbers.scale}
    return Usage(
        **standard,
        kind=_kind(model, objective),
        task=task.name,
        data=task.source,
        metric=objective.metric,
        labels=_labels(task, model),
        tokens=tokens if file is None else TOKENIZER,
        length=task.length,
        columns={name: column for name, column in columns.items() if column},
        global_after=getattr(task, "global_after", ""),
        marks_global=ruled and "is_global" in taken,
        marks={name: rule for name, rule in experiment.marks.items() if name in taken},
        events=getattr(task, "encoded_events", {}),
        pictures=getattr(task, "coding_table", {}),
        modalities=getattr(task, "reading_table", {}),
        settings=located(experiment).tables(),
        tokenizer=file,
    )


def _kind(model: Any, objective: Any) -> str:
    """What the model gives: a class, a number, a token; or the name of another objective."""
    if isinstance(model, LanguageModel):
        return "language"
    if isinstance(model, Matcher):
        return "match"
    if not isinstance(model, Classifier | EarlyExit):
        return objective.name
    return "regress" if objective.metric == "mean squared error" else "classify"


def _labels(task: Any, model: Any) -> tuple[Label, ...]:
    """The task's class names; outputs of a wider head that no class has are named so."""
    names: list[Label] = [*getattr(task, "labels", ())]
    classes = getattr(model, "classes", 0)
    if classes < len(names):  # a language model, or a number for each document
        return ()
    spare = range(len(names), classes) if names else ()
    return (*names, *(f"(unused {place})" for place in spare))
