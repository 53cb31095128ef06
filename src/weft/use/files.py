"""Predictions for a file, row by row: CSV, JSON lines, Parquet or lines of text, in and out.

Never more than a chunk of rows is in memory. Every row keeps its columns and gets `prediction`;
with probabilities also one column `p(LABEL)` for each label. A row without a text keeps its place,
with an empty prediction, and is counted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from weft.arena.tasks.table.rows import plain_text
from weft.arena.tasks.table.streams import (
    STDIN,
    STREAMS,
    Bad,
    check_names,
    csv_rows,
    json_rows,
    kind_of,
    open_text,
    stream_table,
)
from weft.dna.fasta import is_fasta, read_fasta
from weft.errors import WeftError
from weft.models.usage.inputs import Reads, reads_of
from weft.models.usage.multimodal import MultimodalInput
from weft.models.usage.predict import (
    BATCH_TOKENS,
    CHUNK,
    CHUNK_CHARACTERS,
    Document,
    answers,
    scores_of,
    usable,
)
from weft.models.usage.record import Usage
from weft.pictures.files import SUFFIXES as PICTURES
from weft.sound.files import ENDINGS as SOUNDS

PREDICTION = "prediction"


@dataclass
class Tally:
    """What came of a file."""

    documents: int = 0
    unusable: list[str] = field(default_factory=list)  # rows without a prediction: the first ten
    unusable_count: int = 0
    seconds: float = 0.0
    right: int = 0
    labelled: int = 0  # rows whose label the model knows
    unseen: Counter[str] = field(default_factory=Counter)  # labels that it does not know
    squares: float = 0.0  # of the errors of a regression
    kind: str = "classify"

    def refuse(self, row: str) -> None:
        """Count a row that has no prediction."""
        self.unusable_count += 1
        if len(self.unusable) < 10:
            self.unusable.append(row)


@dataclass(frozen=True)
class TextColumns:
    """Where the texts stand in a file; the names of the training data where none are given."""

    text: str
    second: str | None
    global_text: str | None
    label: str | None
    several: tuple[str, ...] = ()  # of rows of several kinds, instead
    folder: Path = Path()  # of paths to sounds and pictures in the file

    @property
    def texts(self) -> list[str]:
        """The columns that must be there."""
        if self.several:
            return list(self.several)
        return [name for name in (self.text, self.second, self.global_text) if name]


def columns_of(usage: Usage, file: str = "", **given: str | None) -> TextColumns:
    """The columns of the training data, or those that are given instead.

    Paths to sounds and pictures are relative to the `file`, if it is a table.
    """
    named = {**usage.columns, **{name: value for name, value in given.items() if value}}
    second = named.get("second", "second") if usage.is_pair else None
    lead = named.get("global_text")
    reads = reads_of(usage)
    several = reads.columns if isinstance(reads, MultimodalInput) else ()
    folder = Path(file).parent if Path(file).suffix.lower() in STREAMS else Path()
    label = named.get("label")
    return TextColumns(named.get("text", "text"), second, lead, label, several, folder)


def predictions(
    model: Any, rows: Iterable[Any], columns: TextColumns, tally: Tally, *, proba: bool
) -> Iterator[dict[str, Any]]:
    """Each row of a stream with its prediction, in order."""
    usage, began = usable(model), time.perf_counter()
    tally.kind, reads = usage.kind, reads_of(usage)
    if proba and usage.kind == "regress":
        raise WeftError("a regression predicts numbers; it has no probabilities: leave --proba out")
    for chunk in _chunks(rows, columns, tally, reads):
        documents = [document for _, document in chunk if document is not None]
        scores = scores_of(model, documents, BATCH_TOKENS) if documents else None
        found = iter(_cells(scores, usage, proba) if scores is not None else ())
        for row, document in chunk:
            own = next(found) if document is not None else {PREDICTION: None}
            if document is not None:
                _score(row, own[PREDICTION], columns, usage, tally)
            yield {**row, **own}
        tally.documents += len(documents)
        tally.seconds = time.perf_counter() - began


def _cells(scores: Any, usage: Usage, proba: bool) -> Iterator[dict[str, Any]]:
    shares = answers(scores, usage, True) if proba else [{}] * len(scores)
    for label, own in zip(answers(scores, usage, False), shares, strict=True):
        yield {PREDICTION: label, **{f"p({name})": share for name, share in own.items()}}


def _chunks(
    rows: Iterable[Any], columns: TextColumns, tally: Tally, reads: Reads | None
) -> Iterator[list[tuple[dict[str, Any], Document | None]]]:
    """Rows with their documents, None where there is no text; in lists of bounded size."""
    chunk: list[tuple[dict[str, Any], Document | None]] = []
    usable_rows = characters = 0
    for item in rows:
        if isinstance(item, Bad):
            tally.refuse(str(item))
            continue
        line, row = item
        try:
            document = _document(row, columns, reads)
            usable_rows, characters = usable_rows + 1, characters + document.characters
        except (ValueError, WeftError) as reason:
            tally.refuse(f"line {line:,}: {reason}")
            document = None
        chunk.append((row, document))
        if CHUNK in (usable_rows, len(chunk)) or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, usable_rows, characters = [], 0, 0
    if chunk:
        yield chunk


def _document(row: dict[str, Any], columns: TextColumns, reads: Reads | None) -> Document:
    if columns.several and reads is not None:
        return Document("", row=reads.row(row, columns.folder))
    if reads is not None:
        own = plain_text(row.get(columns.text), columns.text)
        return Document("", row=reads.row(own, columns.folder))
    second = plain_text(row.get(columns.second), columns.second) if columns.second else ""
    lead = columns.global_text
    text = plain_text(row.get(columns.text), columns.text)
    return Document(text, second, plain_text(row.get(lead), lead) if lead else "")


def _score(
    row: dict[str, Any], prediction: Any, columns: TextColumns, usage: Usage, tally: Tally
) -> None:
    """Count a row that has a label."""
    try:
        label = plain_text(row.get(columns.label), "label").strip() if columns.label else ""
    except ValueError:
        return
    if usage.kind == "regress":
        try:
            tally.squares += (float(label) - prediction) ** 2
            tally.labelled += 1
        except ValueError:
            tally.unseen[label] += 1
        return
    if label not in {plain_text(each, "label") for each in usage.labels}:
        tally.unseen[label] += bool(label)
        return
    tally.labelled += 1
    tally.right += label == plain_text(prediction, "label")


def input_rows(
    path: str, columns: TextColumns, encoding: str = "utf-8"
) -> tuple[str, Iterator[Any]]:
    """The kind of a file, and its rows; standard input and .txt are recognised by their start."""
    if is_fasta(Path(path)):
        return ".csv", _fasta_rows(Path(path), columns)
    if Path(path).suffix.lower() in (*SOUNDS, *PICTURES):
        return ".csv", iter([(1, {columns.text: path})])
    kind = ".txt" if path == STDIN else kind_of(Path(path))
    if kind != ".txt":
        return kind, stream_table(path, columns.texts, encoding, every=True)
    if path != STDIN and not Path(path).is_file():
        raise WeftError(f"there is no file {path!r}; give the path of a table")
    lines = _lines(path, encoding)
    first = next(lines, "")
    lines, where = chain([first], lines), Path(path)
    if first.lstrip().startswith("{"):
        return ".jsonl", json_rows(where, lines, columns.texts, True)
    if any(name in first for name in columns.texts) and len(first.split()) < 50:
        return ".csv", csv_rows(where, lines, columns.texts, True)
    if len(columns.texts) > 1:
        check_names(where, first.split(","), columns.texts)
    texts = ((at, {columns.text: line.rstrip("\r\n")}) for at, line in enumerate(lines, start=1))
    return ".txt", texts


def _fasta_rows(path: Path, columns: TextColumns) -> Iterator[Any]:
    """A row for each record, with its name."""
    for place, record in enumerate(read_fasta(path), start=1):
        yield place, {"name": record.name, columns.text: record.sequence}


def _lines(path: str, encoding: str) -> Iterator[str]:
    with open_text(Path(path), encoding, newline="\n") as file:
        yield from file


def output_kind(out: Path | None, kind: str) -> str:
    """The kind of the output: told by its name, or that of the input where it is a text kind."""
    if out is None:
        return kind if kind in (".csv", ".tsv", ".jsonl", ".ndjson", ".json") else ".csv"
    if out.suffix.lower() not in STREAMS:
        raise WeftError(f"--out is a .csv, .tsv, .jsonl or .parquet file; got {out.name!r}")
    return out.suffix.lower()
