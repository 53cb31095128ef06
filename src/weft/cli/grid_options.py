"""Options that every verb with a grid of trainings takes, and how such a verb ends early."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from weft.arena.compare import Options

STOPPED = 130  # the exit status of a grid that was asked to stop

Fast = Annotated[
    bool,
    typer.Option("--fast", help="On a GPU: bfloat16, updates compiled and recorded, trimmed."),
]
Jobs = Annotated[int, typer.Option(min=1, help="Trainings at the same time.")]
CellMinutes = Annotated[
    float | None, typer.Option(min=0.0, help="End a training that takes longer.")
]
MemoryLimit = Annotated[
    float | None, typer.Option(min=0.0, help="Gigabytes that a training may grow by.")
]
Retry = Annotated[bool, typer.Option("--retry", help="Run trainings that failed once more.")]
Plugins = Annotated[
    list[str] | None, typer.Option(help="A module that registers mixers or tasks of yours.")
]


def options(
    jobs: int, cell_minutes: float | None, memory_limit: float | None, retry: bool
) -> Options:
    """How the grid is run; memory in gigabytes."""
    from weft.arena.compare import Options

    limit = None if memory_limit is None else int(memory_limit * 2**30)
    return Options(jobs=jobs, cell_minutes=cell_minutes, memory_limit=limit, retry=retry)


def stop(verb: str, out: Path, missing: int) -> NoReturn:
    """End a verb whose grid was stopped, saying how to go on."""
    again = f"weft {verb} --out {shlex.quote(str(out))}"
    typer.echo(f"stopped with {missing} trainings to go; to go on: {again}", err=True)
    raise typer.Exit(STOPPED)
