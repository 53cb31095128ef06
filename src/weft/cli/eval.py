"""`weft eval`: score a trained model on a split of its task."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.bench import Device


class Split(StrEnum):
    """Which data."""

    train = "train"
    valid = "valid"
    test = "test"


def evaluate(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a training, or a cell of a comparison.")
    ],
    split: Annotated[Split, typer.Option(help="Which rows of the task.")] = Split.test,
    device: Annotated[
        Device | None, typer.Option(help="Default: cuda where there is one, else cpu.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The score as a JSON object.")] = False,
    plugin: Annotated[
        list[str] | None, typer.Option(help="A module that registers mixers or tasks of yours.")
    ] = None,
) -> None:
    """Score a run's model, beside rules that read next to nothing."""
    from weft.arena.grid import plugged
    from weft.arena.runs import objective_of, split_of
    from weft.arena.settings import read_experiment
    from weft.arena.tasks import TASKS
    from weft.models import load
    from weft.training import score
    from weft.training.record import Record
    from weft.training.settings import device_named

    plugged(plugin or [])
    experiment = read_experiment(run)
    task = TASKS.parse(experiment.task)
    outcome = Record(run).outcome()
    folder = run / ("best" if outcome is None else outcome.model)
    model = load(folder, device_named(device.value if device else "auto"))
    found = score(
        model,
        split_of(experiment, split.value),
        objective_of(task),
        precision=experiment.training.precision,
    )
    if json:
        from json import dumps

        typer.echo(dumps({"split": split.value, "metric": found.metric, **found.row()}))
        return
    typer.echo(f"{split.value} {found.metric} {found.score:.4f} on {found.count:,} items")
    for group in found.groups:
        typer.echo(f"  {group.name}: {group.accuracy:.4f} of {group.count:,}")
    if split is Split.test:
        for name, value in task.baselines().items():
            typer.echo(f"  {name} (nothing learned): {value:.4f}")
