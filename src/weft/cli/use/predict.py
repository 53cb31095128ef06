"""`weft predict` and `weft show`: use a trained model, and say what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.options import (
    DeviceOption,
    Events,
    IdColumn,
    RunFolder,
    TimeColumn,
    UntilColumn,
)


def show(run: RunFolder) -> None:
    """What a trained model is, how good, on which data, and how to use it."""
    from weft.use.show import show as described

    typer.echo(described(run))


def predict(
    run: RunFolder,
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="CSV, JSON lines, Parquet, .txt of lines; - is stdin."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="CSV, JSON lines or Parquet; default: standard output.")
    ] = None,
    proba: Annotated[bool, typer.Option("--proba", help="Also each label's probability.")] = False,
    text: Annotated[
        str | None, typer.Option(help="Column of texts; default: that of the training data.")
    ] = None,
    second: Annotated[str | None, typer.Option(help="Column of second texts.")] = None,
    global_text: Annotated[str | None, typer.Option(help="Column of texts put in front.")] = None,
    events: Events = None,
    id_: IdColumn = None,
    time: TimeColumn = None,
    until: UntilColumn = None,
    label: Annotated[
        str | None, typer.Option(help="Column of true labels: they are scored where there are any.")
    ] = None,
    encoding: Annotated[str, typer.Option(help="Of CSV and JSON lines.")] = "utf-8",
    device: DeviceOption = None,
) -> None:
    """Predict the label of every row of a file, or of every client of events, in bounded memory."""
    if (file is None) == (not events):
        raise typer.BadParameter("give a FILE of texts, or --events FILE for a model of events")
    if events:
        columns = {"id": id_, "time": time, "until": until, "label": label}
        return _predict_events(run, events, columns, out, proba, device)
    return _predict_texts(
        run, str(file), out, proba, encoding, device,
        {"text": text, "second": second, "global_text": global_text, "label": label},
    )  # fmt: skip


def _predict_events(
    run: Path, events: list[str], columns: dict[str, Any], out: Any, proba: bool, device: Any
) -> None:
    """One row for each client."""
    from weft.models import load
    from weft.printable import printable
    from weft.training.settings import device_named
    from weft.use.events import EventTally, predict_events, usage_of
    from weft.use.files import output_kind
    from weft.use.writers import write_rows

    model, tally = load(run, device_named(device.value if device else "auto")), EventTally()
    usage_of(model)
    rows = predict_events(model, events, proba=proba, tally=tally, **columns)
    write_rows(rows, out, output_kind(out, ".csv"))
    for line in tally.lines():
        typer.echo(printable(line), err=True)


def _predict_texts(
    run: Path,
    file: str,
    out: Path | None,
    proba: bool,
    encoding: str,
    device: Any,
    named: dict[str, str | None],
) -> None:
    """One row for each row."""
    from weft.models import load
    from weft.models.usage.predict import usable
    from weft.training.settings import device_named
    from weft.use.files import Tally, columns_of, input_rows, output_kind, predictions
    from weft.use.writers import write_rows

    model = load(run, device_named(device.value if device else "auto"))
    columns, tally = columns_of(usable(model), file, **named), Tally()
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
