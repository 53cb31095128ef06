"""Options that every verb with a grid of trainings takes, and how such a verb ends early."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from weft.errors import WeftError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.arena.grid.compare import GridOptions
    from weft.rows import Row

STOPPED = 130  # the exit status of what was asked to stop
INCOMPLETE = 3  # of a grid that ended, some of its trainings without a result

Fast = Annotated[
    bool,
    typer.Option("--fast", help="On a GPU: bfloat16, updates compiled and recorded, trimmed."),
]
OutFolder = Annotated[Path, typer.Option(help="Folder of the results; a rerun continues there.")]
Jobs = Annotated[int, typer.Option(min=1, help="Trainings at the same time.")]
CellMinutes = Annotated[
    float | None, typer.Option(min=0.0, help="End a training that takes longer.")
]
MemoryLimit = Annotated[
    float | None, typer.Option(min=0.0, help="Gigabytes that a training may grow by.")
]
EngineName = Annotated[
    Literal["pool", "ray"],
    typer.Option("--engine", help="Where trainings run: processes here, or a Ray cluster."),
]
Address = Annotated[
    str | None, typer.Option(help="HOST:PORT of a Ray cluster; default: one on this machine.")
]
Retry = Annotated[bool, typer.Option("--retry", help="Run trainings that failed once more.")]


def options(
    jobs: int,
    cell_minutes: float | None,
    memory_limit: float | None,
    retry: bool,
    engine: str = "pool",
    address: str | None = None,
) -> GridOptions:
    """How the grid is run; memory in gigabytes."""
    from weft.arena.grid.compare import GridOptions
    from weft.scale.mesh import processes

    if processes() > 1:
        raise WeftError(
            f"torchrun started {processes()} processes, and each would train the whole grid: call "
            "weft without torchrun, and take --jobs N or --engine ray for several trainings at a "
            "time. One training over several devices is torchrun ... -m weft train"
        )
    limit = None if memory_limit is None else int(memory_limit * 2**30)
    where = {"engine": engine, "address": address}
    given = {"jobs": jobs, "cell_minutes": cell_minutes, "memory_limit": limit, "retry": retry}
    return GridOptions(**given, **where)


def stop(verb: str, out: Path, missing: int) -> NoReturn:
    """End a verb whose grid was stopped, saying how to go on."""
    again = _again(verb, out)
    typer.echo(f"stopped with {missing} trainings to go; to go on: {again}", err=True)
    raise typer.Exit(STOPPED)


def end(verb: str, out: Path, rows: Sequence[Row]) -> None:
    """Say which trainings have no result, and let the exit status say that there are some.

    A mechanism that refuses the work ("unsupported") is a result.
    """
    from weft.arena.grid.compare import RETRIED

    lost = [row for row in rows if row["status"] in RETRIED]
    if lost:
        labels = list(dict.fromkeys(f"{row['label']} ({row['status']})" for row in lost))
        more = f" and {len(labels) - 8} more" if len(labels) > 8 else ""
        typer.echo(
            f"{len(lost)} of {len(rows)} trainings have no result: {', '.join(labels[:8])}{more}; "
            f"to run them again: {_again(verb, out)} --retry",
            err=True,
        )
        raise typer.Exit(INCOMPLETE)


def _again(verb: str, out: Path) -> str:
    from weft.plugins import named

    options = "".join(f" --plugin {module}" for module in named())
    return f"weft {verb} --out {shlex.quote(str(out))}{options}"
