"""`weft ablate`: which modifications of a model help, beyond the noise of seeds."""

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
    Jobs,
    MemoryLimit,
    OutFolder,
    Retry,
    end,
    options,
    stop,
)
from weft.cli.options import Changes, Device, DeviceOption, Steps


def ablate(
    out: OutFolder,
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="Settings with [[modification]]s: a TOML file, ablate_small, or ablate_bytes."
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Another task, e.g. 'language(folder=\"data/wiki.txt\")'.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Some of the modifications, separated by ';'.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each modification.")] = 3,
    steps: Steps = None,
    final_steps: Annotated[
        int | None, typer.Option(min=1, help="Updates of one longer training each.")
    ] = None,
    speed: Annotated[
        bool, typer.Option("--speed", help="Measure steps per second afterwards, in turns.")
    ] = False,
    device: DeviceOption = None,
    change: Changes = None,
    jobs: Jobs = 1,
    cell_minutes: CellMinutes = None,
    memory_limit: MemoryLimit = None,
    retry: Retry = False,
    engine: EngineName = "pool",
    address: Address = None,
) -> None:
    """Train a base model and modifications of it, a few seeds each, and rank them.

    The seeds of a modification share a process; one that fails becomes a line of the result. Stop
    with Ctrl-C at any time; `weft ablate --out FOLDER` goes on.
    """
    from weft.arena.ablation.ablate import ablate as run
    from weft.arena.ablation.rows import write_table
    from weft.arena.ablation.speed import measure_speed
    from weft.cli.experiment.live import Live
    from weft.cli.screen import console
    from weft.plugins import named
    from weft.training.checkpoints.run_folder import check_place

    check_place(out)
    changes = _changes(task, steps, device, change or [])
    given = {"seeds": tuple(range(seeds)), "final_steps": final_steps}
    wanted = _wanted(out, recipe, changes, {**given, "plugins": named()}, only)
    chosen = options(jobs, cell_minutes, memory_limit, retry, engine, address)
    chosen = replace(chosen, estimate=True)
    with Live(console(error=True)) as live:
        found = run(wanted, out, chosen, live, command=shlex.join(["weft", *sys.argv[1:]]))
    if speed and found.finished:
        measure_speed(wanted, out, told=lambda text: typer.echo(text, err=True))
    _show(out, write_table(wanted, out), console())
    if not found.finished:
        stop("ablate", out, found.missing)
    end("ablate", out, found.rows)


def _wanted(
    out: Path, recipe: str | None, changes: list[str], given: dict[str, Any], only: str | None
) -> Any:
    """The ablation that the options describe, or the one of the folder if they describe none."""
    from weft.arena.ablation.ablate import read_ablation, resumed

    if recipe is None:
        if not (out / "ablation.json").exists():
            raise typer.BadParameter(
                "say what to ablate: a settings file, ablate_small (minutes on two cores, needs no "
                f"file), or ablate_bytes (your text: --task); {out} holds no ablation"
            )
        return resumed(out)
    wanted = read_ablation(recipe, changes, **given)
    return wanted.only([name.strip() for name in only.split(";")]) if only else wanted


def _changes(
    task: str | None, steps: int | None, device: Device | None, changes: list[str]
) -> list[str]:
    """The options as changes of settings."""
    found = [f"task={task}"] if task else []
    found += [f"training.steps={steps}"] if steps else []
    found += [f"training.device={device.value}"] if device else []
    return [*found, *changes]


def _show(out: Path, rows: list[dict[str, Any]], screen: Any) -> None:
    """The table, and where the report is."""
    from weft.cli.screen import rich_table
    from weft.report import write_report
    from weft.report.page.ablation import ablation_table

    if any(row["early_loss"] is not None for row in rows):
        screen.print(rich_table(ablation_table(rows)))
    screen.print(f"report: {write_report(out)}", markup=False, soft_wrap=True)
