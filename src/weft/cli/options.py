"""Options that several verbs take."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Device(StrEnum):
    """Where a model runs."""

    cpu = "cpu"
    cuda = "cuda"


class StoredAs(StrEnum):
    """How the numbers of a native model are stored."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    int8 = "int8"


DeviceOption = Annotated[
    Device | None, typer.Option(help="Default: cuda where there is one, else cpu.")
]
RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a training, a cell, or a saved model.")
]
Tokenizer = Annotated[
    Path | None, typer.Option(help="A `tokenizers` JSON file; default: ids are bytes.")
]
JsonRows = Annotated[bool, typer.Option("--json", help="A JSON object per row.")]
Rounds = Annotated[int, typer.Option(min=1, help="Turns that each case takes.")]

Changes = Annotated[
    list[str] | None, typer.Option("--set", help="A setting: model.layers=2, training.lr=1e-3.")
]
Steps = Annotated[int | None, typer.Option(min=1, help="Updates of each training.")]
Minutes = Annotated[
    float | None, typer.Option(min=0.0, help="What is waited for each training, scores included.")
]
Tables = Annotated[
    list[str] | None, typer.Option(help="Your own table: CSV, JSON lines or Parquet.")
]

# Columns of a table of the user's.
TextColumn = Annotated[str, typer.Option(help="Its column of texts.")]
LabelColumn = Annotated[str, typer.Option(help="Its column of classes.")]
SecondColumn = Annotated[
    str | None, typer.Option(help="Its column of second texts, to match pairs.")
]
GroupColumn = Annotated[
    str | None, typer.Option(help="Its column of groups (book, author): each in one split.")
]

# Events of the user's: one row for each, many rows for each client.
Events = Annotated[
    list[str] | None, typer.Option("--events", help="Your own events: Parquet or CSV, * and ? too.")
]
IdColumn = Annotated[str | None, typer.Option("--id", help="Its column of clients (id).")]
TimeColumn = Annotated[str | None, typer.Option("--time", help="Its column of times (time).")]
UntilColumn = Annotated[
    str | None, typer.Option(help="Its column of dates from which on nothing may be read.")
]
OutOfTime = Annotated[
    str | None, typer.Option(help="Clients that end on this date or later are the test.")
]
Last = Annotated[int | None, typer.Option(min=1, help="Events read of each client (750).")]
