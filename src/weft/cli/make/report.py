"""`weft report`: the answer of a run, to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run, or rows of `weft bench decode`.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Write the page here instead of RUN/report.html.")
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Write a run as a self-contained HTML page, and as Markdown beside it."""
    from weft.report import write_report

    path = write_report(run, out)
    typer.echo(f"wrote {path} and {path.with_suffix('.md')}")
    if show:
        typer.launch(str(path.resolve()))
