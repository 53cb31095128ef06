"""`weft tour`: the verbs in ten minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def tour(
    into: Annotated[Path, typer.Option(help="Folder of the tour's files.")] = Path("runs/tour"),
) -> None:
    """Walk through pattern, bench, compare, train, predict and generate: ten minutes on 2 cores."""
    from weft.use.tour import tour as walk

    walk(into, typer.echo)
