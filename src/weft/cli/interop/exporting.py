"""`weft export hf`: a trained model as a folder that Transformers reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.options import RunFolder
from weft.cli.verbs import App

app = App(name="export", help="Write models for other libraries.", no_args_is_help=True)


@app.callback()
def _kinds() -> None:
    """Write models for other libraries."""


@app.command("hf")
def hf(
    run: RunFolder,
    out: Annotated[Path, typer.Argument(help="A new folder.")],
    shard: Annotated[str, typer.Option(help="Weights in a file, at most.")] = "5GB",
) -> None:
    """Write a model, its tokenizer and a model card for Hugging Face Transformers."""
    from weft.interop.hf import export

    folder = export(run, out, shard=shard)
    for path in sorted(folder.iterdir()):
        typer.echo(f"{path.stat().st_size:>13,}  {path}")
