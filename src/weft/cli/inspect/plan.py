"""`weft plan`: which kernels a mixer or a pattern would run, and why, before anything is run."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

Precision = Literal["float64", "float32", "bfloat16", "float16"]


def plan(
    spec: Annotated[
        str,
        typer.Argument(
            metavar="SPEC",
            help="A mixer, e.g. 'longformer(window=257)'; or a pattern, with --pattern.",
        ),
    ],
    length: Annotated[int, typer.Option(min=1, help="Tokens of a sequence.")],
    batch: Annotated[int, typer.Option(min=1, help="Sequences in a batch.")] = 1,
    heads: Annotated[int, typer.Option(min=1, help="Heads of the layer.")] = 8,
    head_dim: Annotated[int, typer.Option(min=1, help="Width of a head.")] = 64,
    device: Annotated[
        Literal["cpu", "cuda"], typer.Option(help="Where it would run; it need not be here.")
    ] = "cuda",
    dtype: Annotated[Precision, typer.Option(help="Of weights and tokens.")] = "bfloat16",
    causal: Annotated[bool, typer.Option("--causal", help="No token reads later ones.")] = False,
    dropout: Annotated[float, typer.Option(min=0.0, max=0.99, help="While training.")] = 0.0,
    compiled: Annotated[bool, typer.Option("--compiled", help="Inside torch.compile.")] = False,
    as_pattern: Annotated[bool, typer.Option("--pattern", help="SPEC is a pattern.")] = False,
) -> None:
    """Show which kernel runs each operation of a layer, and why no faster one does."""
    import torch

    from weft.models.planning import plan as planned

    given = {"device": device, "dtype": getattr(torch, dtype), "compiled": compiled}
    if as_pattern:
        shown = f"causal & ({spec})" if causal else spec
        found = planned(shown, (batch, heads, length, head_dim), dropout=dropout, **given)
    else:
        frame = {"heads": heads, "causal": causal, "dropout": dropout}
        x = (batch, length, heads * head_dim)
        found = planned(spec, x, training=dropout > 0, **frame, **given)
    typer.echo(str(found))
