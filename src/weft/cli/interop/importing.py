"""`weft import hf`: a published checkpoint as a saved weft model."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.verbs import App

app = App(name="import", help="Read models of other libraries.", no_args_is_help=True)


class ImportPrecision(StrEnum):
    """What the weights are stored in."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


@app.callback()
def _kinds() -> None:
    """Read models of other libraries."""


@app.command("hf")
def hf(
    folder: Annotated[Path, typer.Argument(help="config.json and weights, or a .gguf file.")],
    out: Annotated[Path, typer.Argument(help="Folder of the weft model.")],
    dtype: Annotated[
        ImportPrecision, typer.Option(help="Of the weights; a file's own precision is not kept.")
    ] = ImportPrecision.float32,
    head: Annotated[
        str | None,
        typer.Option(help="As MaskedLM; Model: the body alone. Default: the checkpoint's."),
    ] = None,
    mask_id: Annotated[
        int | None,
        typer.Option(help="Id of the mask token, where neither config nor tokenizer say it."),
    ] = None,
) -> None:
    """Read a checkpoint of Hugging Face Transformers, and save it as a weft model."""
    from typing import Any, cast

    import torch

    from weft.errors import WeftError
    from weft.interop.hf import load
    from weft.models import save

    if out.exists() and out.resolve() == folder.resolve():
        raise WeftError(f"{out} is the checkpoint itself; give another folder for the weft model")
    model = load(folder, dtype=getattr(torch, dtype.value), head=head, mask_id=mask_id)
    save(model, out)
    numbers = sum(p.numel() for p in model.parameters())
    usage = getattr(model, "usage", None)
    with_tokenizer = usage is not None and usage.tokenizer is not None
    typer.echo(
        f"{out}: {cast(Any, model).config.name}, {numbers:,} parameters, "
        f"{'with' if with_tokenizer else 'without'} a tokenizer"
    )
