"""`weft eval`: score a trained model on a split of its task."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated, Any

import typer

from weft.cli.options import DeviceOption, RunFolder
from weft.errors import WeftError


class Split(StrEnum):
    """Which data."""

    train = "train"
    valid = "valid"
    test = "test"


def evaluate(
    run: RunFolder,
    split: Annotated[Split, typer.Option(help="Which rows of the task.")] = Split.test,
    device: DeviceOption = None,
    exit_: Annotated[
        str | None,
        typer.Option("--exit", help='Let rows leave early: "patience(6)", "conformal(0.05)".'),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The score as a JSON object.")] = False,
) -> None:
    """Score a run's model, beside rules that read next to nothing."""
    from weft.arena.experiment.results import score_split, write_scores
    from weft.arena.experiment.runs import split_of
    from weft.arena.experiment.settings import read_experiment
    from weft.models import load
    from weft.training.settings import device_named
    from weft.use.show import score_lines

    experiment = read_experiment(run)
    model = load(run, device_named(device.value if device else "auto"))
    if not (run / "done.json").is_file():
        typer.echo("this training is not finished: its best model so far is scored", err=True)
    if exit_ is not None:
        from weft.arena.analysis.exits import exit_score

        if split is Split.valid:
            raise WeftError("a rule of early exit is fitted on valid, so score it on test or train")
        splits = [split_of(experiment, name) for name in ("valid", split.value)]
        early = exit_score(model, exit_, *splits, precision=experiment.training.precision)
        _show_exits(early, split.value, json)
        return
    found, row = score_split(experiment, model, split.value)
    if split is Split.test and os.access(run, os.W_OK):
        write_scores(run, row)  # `weft show` and the report have them from there
    if json:
        from json import dumps

        typer.echo(dumps(row, ensure_ascii=False))
        return
    for line in score_lines(row):
        typer.echo(line)
    for group in found.groups:
        typer.echo(f"  {group.name}: {group.accuracy:.4f} of {group.count:,}")


def _show_exits(found: Any, split: str, json: bool) -> None:
    """What leaving early gives and saves."""
    if json:
        from json import dumps

        typer.echo(dumps({"split": split, "metric": "accuracy", **found.row()}))
        return
    typer.echo(f"{split} accuracy {found.score:.4f} on {found.count:,} items, by {found.exit}")
    typer.echo(f"  all layers: {found.full:.4f}; answered alike: {found.agreement:.4f}")
    typer.echo(f"  layers run: {found.layers:.2f} of {found.of} on average")
