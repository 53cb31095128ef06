"""`weft quantise`: write a model for native decoding, and measure what the precision costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.options import JsonRows, RunFolder, StoredAs, Tokenizer

if TYPE_CHECKING:
    from torch import nn

    from weft.native import WeightPrecision


def quantise(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="Folder of the native model.")],
    weights: Annotated[StoredAs, typer.Option(help="Precision of the weights.")] = StoredAs.int8,
    cache: Annotated[StoredAs, typer.Option(help="Of keys and values.")] = StoredAs.float32,
    output: Annotated[
        StoredAs | None,
        typer.Option(help="Of the matrix over the vocabulary; default: weights."),
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option(help="One part, as '3.*=float32' or '*.attention.*=bfloat16'; repeatable."),
    ] = None,
    text: Annotated[
        Path | None, typer.Option(help="A text file: the change in loss is measured on it.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=2, help="Of the text, at most.")] = 8192,
    window: Annotated[int, typer.Option(min=2, help="Tokens read from an empty state.")] = 256,
    tokenizer: Tokenizer = None,
    json: JsonRows = False,
) -> None:
    """Round a model's weights, write it for native decoding, and say what that costs."""
    from weft.models import load
    from weft.native import WeightPrecision, export

    model = load(run)
    precision = WeightPrecision(
        weights=weights.value,
        cache=cache.value,
        output=output.value if output else None,
        parts=_parts(part or []),
    )
    export(
        model,
        out,
        dtype=precision.weights,
        cache=precision.cache,
        output=precision.output,
        parts=dict(precision.parts),
    )
    if text is not None:
        _measure(model, precision, text, tokens, window, tokenizer, json)
    if not json:
        size = (out / "model.weft").stat().st_size
        typer.echo(f"{out}: {size / 1e6:,.1f} MB")


def _parts(given: list[str]) -> dict[str, str]:
    from weft.errors import WeftError

    found = {}
    for item in given:
        name, equals, dtype = item.partition("=")
        if not equals:
            raise WeftError(f"--part reads PATTERN=PRECISION, as '3.*=float32'; got {item!r}")
        found[name] = dtype
    return found


def _measure(
    model: nn.Module,
    precision: WeightPrecision,
    text: Path,
    tokens: int,
    window: int,
    tokenizer: Path | None,
    json: bool,
) -> None:
    from dataclasses import asdict
    from json import dumps

    from weft.files import read_text
    from weft.generate import ByteText, TokenizerText
    from weft.native.quality import quality

    reader = ByteText() if tokenizer is None else TokenizerText(tokenizer)
    ids = reader.encode(read_text(text))[:tokens]
    rows = quality(model, ids, precision, window)
    if json:
        for row in rows:
            typer.echo(dumps(asdict(row)))
        return
    typer.echo(f"{'rounded':<12} {'precision':<18} {'MB':>10} {'loss':>9} {'change':>10}")
    for row in rows:
        size = f"{row.bytes / 1e6:,.2f}"
        line = f"{row.part:<12} {row.dtype:<18} {size:>10} {row.loss:>9.5f} {row.change:>+10.5f}"
        typer.echo(line)
