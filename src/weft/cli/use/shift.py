"""`weft shift`: does a trained model answer the same when all tokens move?"""

from __future__ import annotations

from typing import Annotated

import typer

from weft.cli.options import DeviceOption, RunFolder
from weft.cli.use.evaluate import Split
from weft.errors import WeftError


def shift(
    run: RunFolder,
    by: Annotated[
        str, typer.Option(help="Places, separated by commas: one token, a block, ...")
    ] = "1,64",
    rows: Annotated[
        int, typer.Option(min=1, help="Documents that are read, the first ones.")
    ] = 2000,
    split: Annotated[Split, typer.Option(help="Which rows of the task.")] = Split.test,
    device: DeviceOption = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object for each move.")] = False,
) -> None:
    """Score a run's model again after shifts and cyclic moves of its sequences."""
    from json import dumps

    import numpy as np

    from weft.arena.analysis.shift import Move, shift_test
    from weft.arena.experiment.runs import objective_of, rows_of
    from weft.arena.experiment.settings import read_experiment
    from weft.models import load
    from weft.training.settings import device_named

    places = _places(by)
    experiment = read_experiment(run)
    model = load(run, device_named(device.value if device else "auto"))
    own, size = rows_of(experiment, split.value), experiment.training.batch
    count = min(rows, len(own))
    starts = range(0, count, size)
    source = [own.batch(np.arange(start, min(start + size, count))) for start in starts]
    moves = [Move(place, cyclic) for place in places for cyclic in (False, True)]
    objective = objective_of(experiment)
    found = shift_test(model, source, objective, moves)
    if json:
        for each in found:
            typer.echo(dumps({"split": split.value, "metric": objective.metric, **each.row()}))
        return
    typer.echo(f"{objective.metric} on {count:,} documents of {split.value}")
    for each in found:
        line = f"  {each.move:<16} {each.score:.4f}"
        if each.move != "none" and each.change is not None:
            line += f"   scores change by {each.change:.4f} on average, at most {each.largest:.4f}"
        typer.echo(line)


def _places(by: str) -> list[int]:
    try:
        return [int(part) for part in by.split(",")]
    except ValueError as cause:
        raise WeftError(f"--by takes whole numbers such as 1,64; got {by!r}") from cause
