"""`weft probe`: how well a linear classifier on each layer solves the task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from weft.cli.options import DeviceOption, RunFolder
from weft.cli.use.evaluate import Split
from weft.errors import WeftError


def probe(
    run: RunFolder,
    layers: Annotated[
        str | None, typer.Option(help="Layers from 1, separated by commas; default: all.")
    ] = None,
    rows: Annotated[
        int, typer.Option(min=2, help="Training rows that probes are fitted on, at most.")
    ] = 5000,
    scored: Annotated[int, typer.Option(min=1, help="Rows that are scored, at most.")] = 5000,
    split: Annotated[Split, typer.Option(help="Which rows are scored.")] = Split.test,
    decay: Annotated[float, typer.Option(help="Of the probes' weights.")] = 1e-3,
    device: DeviceOption = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object for each layer.")] = False,
) -> None:
    """Fit a linear classifier to each layer of a run's model: what it has learned without labels.

    The model's weights stay as they are. For models that learned without classes, such as those of
    pixel_lm, on a task that has classes.
    """
    from json import dumps

    from weft.arena.experiment.runs import objective_of
    from weft.arena.experiment.settings import read_experiment
    from weft.models import load
    from weft.training.probe import linear_probes
    from weft.training.settings import device_named

    experiment = read_experiment(run)
    if experiment.task.kind != "classify" or experiment.task.classes < 2:
        raise WeftError(
            f"a probe learns classes, and the task {experiment.task.name!r} has none: it is of "
            f"the kind {experiment.task.kind!r} with {experiment.task.classes} classes"
        )
    model: Any = load(run, device_named(device.value if device else "auto"))
    objective = objective_of(experiment)
    sources = [
        _batches(experiment, model, objective, name, count)
        for name, count in (("train", rows), (split.value, scored))
    ]
    wanted = None if layers is None else _numbers(layers)
    found = linear_probes(model, *sources, layers=wanted, decay=decay)
    best = max(found, key=lambda each: each.accuracy)
    for each in found:
        own = {"layer": each.layer, "accuracy": each.accuracy}
        if json:
            more = {"split": split.value, "train_accuracy": each.train_accuracy}
            typer.echo(dumps({**own, **more}))
        else:
            mark = "   best" if each is best else ""
            line = f"layer {each.layer}: {split.value} accuracy {each.accuracy:.4f}"
            typer.echo(f"{line}, training rows {each.train_accuracy:.4f}{mark}")
    if not json and split is Split.test:
        for name, value in experiment.task.baselines().items():
            typer.echo(f"  trivial rule: {name} {value:.4f}")


def _batches(experiment: Any, model: Any, objective: Any, split: Any, count: int) -> Iterator[Any]:
    """Rows of a split as the model reads them."""
    import numpy as np

    from weft.arena.data.sample import sample
    from weft.arena.experiment.runs import rows_of

    own, size = sample(rows_of(experiment, split), count), experiment.training.batch
    device = next(model.parameters()).device
    for start in range(0, len(own), size):
        batch = own.batch(np.arange(start, min(start + size, len(own)))).to(device)
        yield objective.read(model, batch) if hasattr(objective, "read") else batch


def _numbers(layers: str) -> list[int]:
    try:
        return [int(part) for part in layers.split(",")]
    except ValueError as cause:
        raise WeftError(f"--layers takes whole numbers such as 2,4; got {layers!r}") from cause
