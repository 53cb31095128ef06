"""`weft train`: train a model from one file of settings."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.bench import Device
from weft.cli.grid_options import Fast

STOPPED = 130  # the exit status of a training that was asked to stop


def train(
    settings: Annotated[
        str, typer.Argument(metavar="SETTINGS", help="A TOML file, or the name of a recipe.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; default: runs/ and the file's name.")
    ] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="A setting: training.steps=100.")
    ] = None,
    mixer: Annotated[
        str | None, typer.Option(help="Another mechanism, or one of the recipe's [mixers].")
    ] = None,
    device: Annotated[
        Device | None, typer.Option(help="Default: cuda where there is one, else cpu.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0)] = None,
    fast: Fast = False,
    plugin: Annotated[
        list[str] | None, typer.Option(help="A module that registers mixers or tasks of yours.")
    ] = None,
) -> None:
    """Train what a settings file describes; a run that was stopped goes on where it was.

    Ctrl-C ends the step, saves and stops. The folder holds the settings, metrics as JSON lines,
    and the best model by validation.
    """
    from weft.arena.grid import contenders, plugged
    from weft.arena.runs import run_of
    from weft.arena.settings import read_settings, write_experiment
    from weft.cli.live import Watch
    from weft.cli.screen import console
    from weft.training import train as run

    plugged(plugin or [])
    changes = list(change or [])
    changes += [f"training.device={device.value}"] if device else []
    changes += [f"training.seed={seed}"] if seed is not None else []
    recipe = read_settings(settings, changes)
    experiment = recipe.experiment
    if mixer:
        known = recipe.mixers
        experiment = (
            known[mixer] if mixer in known else next(iter(contenders(recipe, mixer).values()))
        )
    if fast:
        from weft.arena.fast import hastened

        experiment = hastened(experiment)
    folder = out or Path("runs") / Path(settings).stem
    prepared = run_of(experiment)
    write_experiment(folder, experiment)
    outcome = run(prepared, folder, Watch(console(error=True)))
    if outcome.status == "interrupted":
        again = f"weft train {shlex.quote(settings)} --out {shlex.quote(str(folder))}"
        typer.echo(f"stopped and saved after step {outcome.steps}; to go on: {again} ...", err=True)
        raise typer.Exit(STOPPED)
    best = "no validation" if outcome.best_score is None else f"best {outcome.best_score:.4f}"
    typer.echo(
        f"{outcome.steps} steps in {outcome.seconds:.0f} s, validation: {best}; "
        f"weft eval {folder} scores it on the test split"
    )
