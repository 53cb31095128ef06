"""`weft mixers`: what there is, with its traits."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def mixers(
    json: Annotated[bool, typer.Option("--json", help="All traits, as a JSON list.")] = False,
) -> None:
    """List the token mixers: what each can do and what it costs."""
    found = every_mixer()
    if json:
        from json import dumps

        typer.echo(dumps(found, indent=2, ensure_ascii=False))
        return
    from weft.cli.screen import console

    screen = console()
    screen.print(_table(found))
    screen.print(
        f"{len(found)} mixers. Letters: n tokens, c width, d width of a head, g key heads, "
        "w window, r rank.",
        style="dim",
    )


def every_mixer() -> list[dict[str, Any]]:
    """Each mixer's name, default settings and traits, as plain values."""
    from dataclasses import asdict

    from weft.config import write
    from weft.mixers import MIXERS

    found = []
    for name in MIXERS:
        config = MIXERS[name]()
        settings = write(config)
        settings.pop("name", None)
        traits = asdict(config.traits)
        traits["streams"] = config.traits.state is not None
        found.append({"name": name, **traits, "settings": settings})
    return found


def _table(found: list[dict[str, Any]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("family")
    for column in ("causal", "cross", "streams"):
        table.add_column(column, justify="center")
    for column in ("time", "memory", "state", "paper"):
        table.add_column(column)
    for row in found:
        able = ["yes" if row[key] else "–" for key in ("causal", "cross", "streams")]
        costs = [Text(row[key] or "–") for key in ("time", "memory", "state")]
        table.add_row(row["name"], row["family"], *able, *costs, _paper(row["paper"]))
    return table


def _paper(paper: str) -> Any:
    """Authors and year, linked to the address that follows them."""
    from rich.text import Text

    authors, _, address = paper.partition(", http")
    return Text(authors, style=f"link http{address}" if address else "")
