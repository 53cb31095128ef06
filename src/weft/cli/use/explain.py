"""`weft explain`: what a model's answers about clients rest on, as timelines in the report."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from weft.cli.options import DeviceOption, RunFolder
from weft.cli.use.evaluate import Split

SHOWN = 3  # events of a client that the terminal names


def explain(
    run: RunFolder,
    client: Annotated[
        list[str] | None, typer.Option("--client", help="A client of the split; several times.")
    ] = None,
    first: Annotated[
        int, typer.Option(min=1, help="Without --client: this many, the first ones.")
    ] = 3,
    split: Annotated[Split, typer.Option(help="Which clients of the task.")] = Split.test,
    device: DeviceOption = None,
) -> None:
    """Show the events that answers about clients rest on, here and in the report."""
    from weft.arena.analysis.timelines import write_timelines
    from weft.printable import printable
    from weft.report import write_report
    from weft.training.settings import device_named

    place = device_named(device.value if device else "auto")
    for events in write_timelines(run, client or (), first, split.value, place):
        for said in _lines(events):
            typer.echo(printable(said))
    typer.echo(f"timelines: {write_report(run)}")


def _lines(rows: list[Any]) -> list[str]:
    """A client's answer and the events that it rests on most."""
    answer = rows[0]
    lines = [
        f"client {answer['client']}: {answer['probability']:.1%} for {answer['answer']!r}, "
        f"it was {answer['label']!r}; {len(rows):,} events"
    ]
    strongest = sorted(rows, key=lambda row: -abs(row["influence"]))[:SHOWN]
    return lines + [f"  {row['influence']:+.4f}  {row['event']}" for row in strongest]
