"""`weft predict` and `weft show`: use a trained model, and say what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.options import DeviceOption, RunFolder


def show(run: RunFolder) -> None:
    """What a trained model is, how good, on which data, and how to use it."""
    from weft.use.show import show as described

    typer.echo(described(run))


def predict(
    run: RunFolder,
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="CSV, JSON lines, Parquet, .txt of lines; - is stdin."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="CSV, JSON lines or Parquet; default: standard output.")
    ] = None,
    proba: Annotated[bool, typer.Option("--proba", help="Also each label's probability.")] = False,
    text: Annotated[
        str | None, typer.Option(help="Column of texts; default: that of the training data.")
    ] = None,
    second: Annotated[str | None, typer.Option(help="Column of second texts.")] = None,
    global_text: Annotated[str | None, typer.Option(help="Column of texts put in front.")] = None,
    label: Annotated[
        str | None, typer.Option(help="Column of true labels: they are scored where there are any.")
    ] = None,
    encoding: Annotated[str, typer.Option(help="Of CSV and JSON lines.")] = "utf-8",
    device: DeviceOption = None,
) -> None:
    """Predict the label of every row of a file, in bounded memory."""
    from weft.models import load
    from weft.models.usage.predict import usable
    from weft.training.settings import device_named
    from weft.use.files import Tally, columns_of, input_rows, output_kind, predictions
    from weft.use.writers import write_rows

    model = load(run, device_named(device.value if device else "auto"))
    named = {"text": text, "second": second, "global_text": global_text, "label": label}
    columns, tally = columns_of(usable(model), **named), Tally()
    kind, rows = input_rows(file, columns, encoding)
    found = predictions(model, rows, columns, tally, proba=proba)
    write_rows(found, out, output_kind(out, kind))
    for line in _summary(tally, out):
        typer.echo(line, err=True)


def _summary(tally: Any, out: Path | None) -> list[str]:
    """What was done, for people."""
    pace = tally.documents / tally.seconds if tally.seconds else 0.0
    lines = [f"{tally.documents:,} documents in {tally.seconds:.1f} s, {pace:,.0f} per second"]
    lines[0] += f": {out}" if out else ""
    if tally.labelled and tally.kind == "regress":
        error = tally.squares / tally.labelled
        lines.append(f"mean squared error {error:.4f} on {tally.labelled:,} rows with a number")
    elif tally.labelled:
        share = tally.right / tally.labelled
        lines.append(f"accuracy {share:.4f} on {tally.labelled:,} rows with a label")
    if tally.unseen:
        few = ", ".join(f"{name!r} ({count:,})" for name, count in tally.unseen.most_common(5))
        lines.append(f"labels that the model never saw, not scored: {few}")
    if tally.unusable_count:
        lines.append(f"{tally.unusable_count:,} rows have no prediction:")
        lines += [f"  {reason}" for reason in tally.unusable]
    return lines
