"""`weft compare`: train several mechanisms on the same work, and show which to use."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.experiment.grid_options import (
    Address,
    CellMinutes,
    EngineName,
    Fast,
    Jobs,
    MemoryLimit,
    OutFolder,
    Retry,
    end,
    options,
    stop,
)
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

NO_MIXERS = "say which mechanisms: --mixers full,longformer,... (`weft mixers` lists them)"


def compare(
    out: OutFolder,
    task: Annotated[
        str | None, typer.Option(help="E.g. 'listops(length=512)'; see `weft tasks`.")
    ] = None,
    mixers: Annotated[
        str | None,
        typer.Option(help="E.g. 'full,longformer(window=65)'; dense is always compared."),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Settings: a TOML file, or a name such as lra_listops.")
    ] = None,
    data: Tables = None,
    text: TextColumn = "text",
    label: LabelColumn = "label",
    second: SecondColumn = None,
    group: GroupColumn = None,
    global_text: Annotated[
        str | None, typer.Option(help="Its column of texts, e.g. questions, put in front: global.")
    ] = None,
    global_after: Annotated[
        str | None, typer.Option(help="A string, e.g. '. ', whose last characters are global.")
    ] = None,
    events: Events = None,
    id_: IdColumn = None,
    time: TimeColumn = None,
    until: UntilColumn = None,
    out_of_time: OutOfTime = None,
    last: Last = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each mechanism.")] = 1,
    lengths: Annotated[
        str | None, typer.Option(help="Lengths of the task, separated by commas.")
    ] = None,
    steps: Steps = None,
    minutes: Minutes = None,
    device: DeviceOption = None,
    change: Changes = None,
    target: Annotated[
        float | None, typer.Option(help="Score whose time is taken; default: what dense reaches.")
    ] = None,
    span_samples: Annotated[
        int, typer.Option(min=0, help="Sequences for the required attention span; 0: none.")
    ] = 128,
    unfused: Annotated[
        bool, typer.Option("--unfused", help="Also dense attention without a fused kernel.")
    ] = False,
    fast: Fast = False,
    jobs: Jobs = 1,
    cell_minutes: CellMinutes = None,
    memory_limit: MemoryLimit = None,
    retry: Retry = False,
    engine: EngineName = "pool",
    address: Address = None,
) -> None:
    """Train mechanisms on a task under one budget; compare quality, speed and memory.

    Each training runs in its own process, so one that fails becomes a line of the result. Stop
    with Ctrl-C at any time; `weft compare --out FOLDER` goes on.
    """
    from weft.arena.grid.compare import compare as run
    from weft.cli.experiment.live import Live
    from weft.cli.screen import console
    from weft.plugins import named
    from weft.training.checkpoints.run_folder import check_place

    check_place(out)
    wanted = {
        "task": task, "mixers": mixers, "recipe": recipe, "data": data, "text": text,
        "label": label, "second": second, "seeds": seeds, "lengths": lengths, "steps": steps,
        "minutes": minutes, "device": device, "changes": change or [], "target": target,
        "span_samples": span_samples, "unfused": unfused, "plugins": named(), "fast": fast,
        "global_text": global_text, "global_after": global_after, "group": group, "events": events,
        "event_options": {
            "id": id_, "time": time, "until": until, "out_of_time": out_of_time, "length": last,
        },
    }  # fmt: skip
    grid = _grid(out, wanted)
    chosen = options(jobs, cell_minutes, memory_limit, retry, engine, address)
    chosen = replace(chosen, estimate=True)
    command = shlex.join(["weft", *sys.argv[1:]])
    with Live(console(error=True)) as live:
        found = run(grid, out, chosen, live, command=command)
    if found.rows:
        _show(out, console())
    if not found.finished:
        stop("compare", out, found.missing)
    end("compare", out, found.rows)


def _grid(out: Path, wanted: dict[str, Any]) -> Any:
    """The grid that the options describe, or the one of the folder if they describe none."""
    from weft.arena.grid.grid import Grid, numbers, read_grid

    if not any(wanted[key] for key in ("task", "mixers", "recipe", "data", "events")):
        if not (out / "grid.json").exists():
            raise typer.BadParameter(
                "say what to compare: --task and --mixers, or --recipe, --data or --events; "
                f"{out} holds no comparison to go on with"
            )
        return read_grid(out)
    lengths = wanted["lengths"]
    return Grid(
        contenders=_contenders(wanted),
        seeds=tuple(range(wanted["seeds"])),
        lengths=numbers(lengths, "lengths") if lengths else (),
        plugins=tuple(wanted["plugins"]),
        target=wanted["target"],
        span_samples=wanted["span_samples"],
    )


def _contenders(wanted: dict[str, Any]) -> Any:
    from weft.arena.experiment.settings import read_settings
    from weft.arena.experiment.short import short_recipe
    from weft.arena.grid.grid import contenders, with_dense

    if not wanted["recipe"] and not wanted["mixers"]:  # before the data is read
        raise typer.BadParameter(NO_MIXERS)
    changes = [*_changes(wanted), *wanted["changes"]]
    if wanted["recipe"]:
        found = read_settings(wanted["recipe"], changes)
    else:
        found = short_recipe(changes, wanted["steps"])
    chosen = found.mixers
    if wanted["mixers"]:
        chosen = contenders(found, wanted["mixers"])
    if not chosen:
        raise typer.BadParameter(NO_MIXERS)
    chosen = with_dense(chosen, found.experiment, unfused=wanted["unfused"])
    if not wanted["fast"]:
        return chosen
    from weft.arena.experiment.fast import for_speed

    return {label: for_speed(one) for label, one in chosen.items()}


def _changes(wanted: dict[str, Any]) -> list[str]:
    """The options as changes of settings."""
    from weft.arena.experiment.short import budget

    found = []
    if wanted["data"]:
        from weft.arena.tasks.table.describe import describe
        from weft.arena.tasks.table.task import table_from_options
        from weft.printable import printable

        files = wanted["data"]
        names = ("text", "label", "second", "group", "global_text", "global_after")
        columns = {key: wanted[key] for key in names}
        table = table_from_options(files[0] if len(files) == 1 else files, **columns)
        typer.echo(printable(describe(table)))
        found.append(f"task={table}")
    elif wanted["events"]:
        from weft.arena.experiment.short import BUCKETED
        from weft.arena.tasks.events.describe import describe_events
        from weft.arena.tasks.events.task import events_from_options
        from weft.printable import printable

        task = events_from_options(wanted["events"], wanted["label"], **wanted["event_options"])
        typer.echo(printable(describe_events(task)))
        found += [f"task={task}", *BUCKETED]
    elif wanted["task"]:
        found.append(f"task={wanted['task']}")
    found += budget(wanted["steps"], wanted["minutes"], scheduled=bool(wanted["recipe"]))
    if wanted["device"]:
        found.append(f"training.device={wanted['device'].value}")
    return found


def _show(out: Path, screen: Any) -> None:
    """The tables, and where the report is."""
    from weft.cli.screen import rich_table
    from weft.report import write_report
    from weft.report.page.headline import sentences
    from weft.report.read.run_folder import read_run
    from weft.report.read.summary import compare as summarised
    from weft.report.tables.comparison import cost_table, failure_table, score_table

    run = read_run(out)
    found = summarised(run)
    for grid in (score_table(found), cost_table(found), failure_table(run)):
        if grid.rows:
            screen.print(rich_table(grid))
    for sentence in sentences(run, found):
        screen.print(f"{sentence.strong} {sentence.text}".strip(), markup=False, soft_wrap=True)
    report = write_report(out)
    screen.print(f"report: {report}", markup=False, soft_wrap=True)
