"""What verbs print on."""

from __future__ import annotations

from typing import Any

PIPE_WIDTH = 160  # columns where the output is not a terminal, so that tables are not squeezed
_PREFIXES = ("", "k", "M", "G", "T", "P")


def console(*, error: bool = False) -> Any:
    """A rich console; a pipe or a file gets wide lines and no colours."""
    from rich.console import Console

    made = Console(stderr=error, highlight=False)
    return made if made.is_terminal else Console(stderr=error, highlight=False, width=PIPE_WIDTH)


def commas(value: float) -> str:
    """1234567 -> '1,234,567'."""
    return f"{value:,}"


def scaled(value: float, unit: str) -> str:
    """A large number with a prefix: 9.1e9, 'FLOP' -> '9.1 GFLOP'."""
    power = 0
    while abs(value) >= 1000 and power < len(_PREFIXES) - 1:
        value, power = value / 1000, power + 1
    return f"{value:.3g} {_PREFIXES[power]}{unit}"


def percent(share: float) -> str:
    """A share as a percentage with three digits: 0.0123 -> '1.23%'."""
    return f"{100 * share:.3g}%"


def rich_table(grid: Any) -> Any:
    """A table of a report, for a terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from weft.printable import printable

    styles = {"best": "bold", "second": "underline", "faint": "dim"}
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", caption="\n".join(grid.below) or None)
    for place, name in enumerate(grid.header):
        number = any(row[place].number for row in grid.rows)
        table.add_column(name, justify="right" if number else "left")
    for at, row in enumerate(grid.rows):
        if at in grid.sections:
            table.add_section()
            table.add_row(Text(printable(grid.sections[at]), style="italic"))
        table.add_row(
            *(Text(printable(cell.text), style=styles.get(cell.mark, "")) for cell in row)
        )
    return table
