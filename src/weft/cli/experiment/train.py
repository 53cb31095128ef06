"""`weft train`: train a model from one file of settings, or on a table without one."""

from __future__ import annotations

import shlex
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

from weft.cli.experiment.grid_options import STOPPED, Fast
from weft.cli.options import (
    Changes,
    DeviceOption,
    Events,
    GroupColumn,
    IdColumn,
    LabelColumn,
    Last,
    Minutes,
    OutOfTime,
    SecondColumn,
    Steps,
    Tables,
    TextColumn,
    TimeColumn,
    UntilColumn,
)


def train(
    settings: Annotated[
        str | None, typer.Argument(metavar="SETTINGS", help="A TOML file, or the name of a recipe.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; default: runs/ and the file's name.")
    ] = None,
    data: Tables = None,
    text: TextColumn = "text",
    label: LabelColumn = "label",
    second: SecondColumn = None,
    group: GroupColumn = None,
    number: Annotated[
        bool, typer.Option("--number", help="The label is a number to predict, not a class.")
    ] = False,
    events: Events = None,
    id_: IdColumn = None,
    time: TimeColumn = None,
    until: UntilColumn = None,
    out_of_time: OutOfTime = None,
    last: Last = None,
    steps: Steps = None,
    minutes: Minutes = None,
    change: Changes = None,
    mixer: Annotated[
        str | None, typer.Option(help="Another mechanism, or one of the recipe's own (mixers).")
    ] = None,
    device: DeviceOption = None,
    seed: Annotated[int | None, typer.Option(min=0)] = None,
    fast: Fast = False,
) -> None:
    """Train what a settings file describes, or on your table or events; it can be resumed.

    Several devices: torchrun --nproc-per-node 8 -m weft train ..., with a table [training.mesh].

    Ctrl-C ends the step, saves and stops. The folder holds the settings, metrics as JSON lines,
    and the best model by validation, with all that it needs to be used.
    """
    began = perf_counter()
    from weft.cli.experiment.live import Watch
    from weft.cli.screen import console
    from weft.plugins import note
    from weft.scale.lost import tell_torchrun
    from weft.scale.mesh import leave, rank
    from weft.training.checkpoints.run_folder import check_place
    from weft.use.fit import train_in

    tables = data or events or []
    if (settings is not None) + bool(data) + bool(events) != 1:
        raise typer.BadParameter(
            "give a settings file, a table or events: --data reviews.csv --out RUN"
        )
    folder = out or Path("runs") / Path(settings or tables[0]).stem
    check_place(folder)
    changes = list(change or [])
    changes += [f"training.device={device.value}"] if device else []
    changes += [f"training.seed={seed}"] if seed is not None else []
    if data:
        columns = {"text": text, "label": label, "second": second, "group": group}
        columns["number"] = number or None
        experiment = _of_table(data, columns, mixer, steps, minutes, changes)
    elif events:
        own = {"id": id_, "time": time, "until": until, "out_of_time": out_of_time, "length": last}
        experiment = _of_events(events, label, own, mixer, steps, minutes, changes)
    else:
        experiment = _of_settings(str(settings), mixer, steps, minutes, changes)
    if fast:
        from weft.arena.experiment.fast import for_speed

        experiment = for_speed(experiment)
    watch = Watch(console(error=True))
    try:
        outcome = train_in(folder, experiment, watch, began=began, scored=bool(tables))
    except Exception as error:
        tell_torchrun(error)
        raise
    leave()
    if rank():  # of several processes the first one tells
        raise typer.Exit(STOPPED if outcome.status == "interrupted" else 0)
    note(folder)
    if outcome.status == "interrupted":
        option = "--data" if data else "--events"
        named = shlex.join(f"{option}={path}" for path in tables)
        what = shlex.quote(settings) if settings else named
        again = f"weft train {what} --out {shlex.quote(str(folder))}"
        typer.echo(f"stopped and saved after step {outcome.steps}; to go on: {again} ...", err=True)
        raise typer.Exit(STOPPED)
    typer.echo(
        f"{outcome.steps} steps in {outcome.seconds:.0f} s; {_best(outcome, experiment)}", nl=False
    )
    if not tables:
        typer.echo(f"; weft eval {folder} scores it on the test split")
        return
    typer.echo("")
    _show_finished(folder, experiment)


def _best(outcome: Any, experiment: Any) -> str:
    from weft.arena.experiment.runs import objective_of
    from weft.metrics import metric

    if outcome.best_score is None:
        return "no validation"
    name = objective_of(experiment).metric
    return f"best validation {name} {outcome.best_score:.4f} ({metric(name).direction})"


def _of_settings(
    settings: str, mixer: str | None, steps: int | None, minutes: float | None, changes: list[str]
) -> Any:
    """The experiment of a file or a recipe."""
    from weft.arena.experiment.settings import read_settings
    from weft.arena.experiment.short import budget
    from weft.arena.grid.grid import contenders

    recipe = read_settings(settings, [*budget(steps, minutes, scheduled=True), *changes])
    if not mixer:
        return recipe.experiment
    known = recipe.mixers
    return known[mixer] if mixer in known else next(iter(contenders(recipe, mixer).values()))


def _of_table(
    data: list[str],
    columns: dict[str, Any],
    mixer: str | None,
    steps: int | None,
    minutes: float | None,
    changes: list[str],
) -> Any:
    """The experiment of a table, which is described on the screen."""
    from weft.arena.experiment.short import MIXER, budget, short_recipe
    from weft.arena.tasks.table.describe import describe
    from weft.arena.tasks.table.task import table_from_options

    task = table_from_options(data[0] if len(data) == 1 else data, **columns)
    typer.echo(describe(task))
    changes = [*budget(steps, minutes), *changes]
    return short_recipe(changes, steps, task=task, mixer=mixer or MIXER).experiment


def _of_events(
    files: list[str],
    label: str,
    columns: dict[str, Any],
    mixer: str | None,
    steps: int | None,
    minutes: float | None,
    changes: list[str],
) -> Any:
    """The experiment of events, which are described on the screen."""
    from weft.arena.experiment.short import BUCKETED, MIXER, budget, short_recipe
    from weft.arena.tasks.events.describe import describe_events
    from weft.arena.tasks.events.task import events_from_options
    from weft.printable import printable

    task = events_from_options(files, label, **columns)
    typer.echo(printable(describe_events(task)))
    changes = [*BUCKETED, *budget(steps, minutes), *changes]
    return short_recipe(changes, steps, task=task, mixer=mixer or MIXER).experiment


def _show_finished(folder: Path, experiment: Any) -> None:
    from weft.use.fit import finished
    from weft.use.show import score_lines

    model = finished(folder, experiment)
    for line in score_lines(model.scores):
        typer.echo(line)
    typer.echo(f"report: {model.report}")
    if experiment.task.name == "events":
        python = f"weft.predict_events(weft.load({str(folder)!r}), FILE)"
        typer.echo(f"use it: weft predict {folder} --events FILE, or {python}")
        return
    typer.echo(f"use it: weft predict {folder} FILE, or weft.load({str(folder)!r}).predict(texts)")
