"""`weft example-data`: small files to try the other verbs with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def example_data(into: Annotated[Path, typer.Option(help="Their folder.")] = Path()) -> None:
    """Write a small table, another without labels, a text and settings, to try weft with."""
    from weft.use.example_data import write_example_data

    for path in write_example_data(into):
        typer.echo(f"wrote {path}")
