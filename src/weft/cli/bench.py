"""`weft bench`: measure."""

import typer

app = typer.Typer()


@app.command()
def attention() -> None:
    """x"""


@app.callback()
def _b() -> None:
    """Measure."""
