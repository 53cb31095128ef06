"""`weft explain`: what a model's answers rest on, drawn in the report.

Clients become timelines, sounds spectrograms, DNA sequence logos.
"""

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
    """Show what answers rest on, here and in the report: events of clients, sounds, DNA."""
    from weft.arena.analysis.documents import can_draw, write_documents
    from weft.arena.analysis.timelines import write_timelines
    from weft.arena.experiment.settings import read_experiment
    from weft.printable import printable
    from weft.report import write_report
    from weft.training.settings import device_named

    place = device_named(device.value if device else "auto")
    if not client and can_draw(read_experiment(run).task):
        for row in write_documents(run, first, split.value, place):
            said = f"{row['name']}: {row['probability']:.1%} for {row['answer']!r}"
            typer.echo(printable(f"{said}, it was {row['label']!r}"))
        return typer.echo(f"drawn: {write_report(run)}")
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
