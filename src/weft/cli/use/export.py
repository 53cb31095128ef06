"""`weft export onnx`: a trained model as a file for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.options import RunFolder


def onnx(
    run: RunFolder,
    out: Annotated[Path, typer.Argument(metavar="OUT.onnx", help="The file to write.")],
    length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of every sequence; default: any length.")
    ] = None,
) -> None:
    """Write ids -> scores as ONNX, and compare the file with the model by onnxruntime."""
    from weft.models import load
    from weft.use.export import export_onnx

    if out.suffix.lower() != ".onnx":
        raise typer.BadParameter(f"the file ends in .onnx; got {out}", param_hint="OUT.onnx")
    done = export_onnx(load(run), out, length)
    size = out.stat().st_size / 1e6
    sequences = f"{done.length:,} tokens" if done.length else "any length"
    typer.echo(f"{out}: {size:.1f} MB, any batch, {sequences}, without padding; opset 20")
    typer.echo(f"largest difference to the model, by onnxruntime: {done.difference:.1e}")
    if done.dense_patterns:
        typer.echo("its patterns became dense attention under a mask: the same numbers, n² time")
