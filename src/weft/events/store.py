"""Events on disk, client by client, in order of time: made in two passes over files of any size.

The first pass counts: events, period and label of each client, and what encoders are fitted on. The
second writes each event, encoded, to the place of its client. Memory holds one piece of a file and
a few numbers for each client, never the events.

What is wrong is said with its row. Refused: a label that changes within a client, a time that is
missing, a client without an id. Mended and counted: events out of order (sorted), events from
`until` on (left out: they are the future), amounts that are infinite, categories that encoders do
not know, and clients without an event that may be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.events.columns import EventColumns
from weft.events.encoders import UNKNOWN, Encoders, Fitting, Scale
from weft.events.pieces import SECONDS, Coded, EventPiece, pieces, sample
from weft.events.threads import ahead

TOGETHER = 1 << 15  # events that are written before the arrays are closed and opened again
CLIENTS_TOGETHER = 256  # that are sorted, likewise
Rule = Callable[[Sequence[str]], np.ndarray]  # clients -> (clients,) bool: which to fit on
Progress = Callable[[str, int], None]  # what is done, and how many rows of it


@dataclass(frozen=True, eq=False)
class Store:
    """Encoded events: those of client i are starts[i] to starts[i + 1]."""

    encoders: Encoders
    starts: np.ndarray  # (clients + 1,) int64
    codes: np.ndarray  # (events, k) uint16
    numbers: np.ndarray  # (events, m) float32
    times: np.ndarray  # (events,) float64, days
    ids: tuple[str, ...]
    labels: tuple[str | None, ...]  # of each client, where there are labels
    until: np.ndarray  # (clients,) days: nothing from here on was read; the last event's without
    remarks: tuple[str, ...]  # what was mended, for people

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> np.ndarray:
        """(clients,) events of each."""
        return np.diff(self.starts)


@dataclass
class ClientIndex:
    """What the first pass learns of each client, in order of appearance."""

    places: dict[str, int] = field(default_factory=dict)
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    last: np.ndarray = field(default_factory=lambda: np.zeros(0))  # days
    until: np.ndarray = field(default_factory=lambda: np.full(0, np.inf))
    labels: list[str | None] = field(default_factory=list)
    disordered: set[int] = field(default_factory=set)
    remarks: Remarks = field(default_factory=lambda: Remarks())
    notes: list[str] = field(default_factory=list)  # of clients

    def of(self, ids: Coded) -> np.ndarray:
        """(rows,) the place of each row's client; new clients get one."""
        own = [self.places.setdefault(value, len(self.places)) for value in ids.values]
        more = len(self.places) - len(self.counts)
        self.counts = np.concatenate((self.counts, np.zeros(more, np.int64)))
        self.last = np.concatenate((self.last, np.full(more, -np.inf)))
        self.until = np.concatenate((self.until, np.full(more, np.inf)))
        self.labels += [None] * more
        return np.array(own, dtype=np.int64)[ids.codes]


@dataclass
class Remarks:
    """What was mended, how often, and where first."""

    found: dict[str, tuple[int, str]] = field(default_factory=dict)

    def add(
        self,
        what: str,
        rows: np.ndarray,
        piece: EventPiece,
        value: Callable[[int], str] = lambda row: "",
    ) -> None:
        """Rows (rows,) bool of a piece; `value` says what the first of them holds."""
        if count := int(rows.sum()):
            first = int(rows.argmax())
            where = f"{piece.where(first)}{value(first)}"
            before, where = self.found.get(what, (0, where))
            self.found[what] = (before + count, where)

    def lines(self) -> tuple[str, ...]:
        """One for each kind."""
        return tuple(
            f"{count:,} events {what} (the first: {where})"
            for what, (count, where) in self.found.items()
        )


def build_store(
    files: Sequence[Path],
    columns: EventColumns,
    folder: Path,
    *,
    encoders: Encoders | None = None,
    fit_on: Rule | None = None,
    fit_before: float = np.inf,
    scale: Scale = "quantile",
    progress: Progress = lambda what, rows: None,
) -> Store:
    """Read files into `folder`.

    Encoders are given, or fitted on events before `fit_before` of clients that `fit_on` chooses.
    """
    columns = columns.found(sample(files[0]), files[0].name)
    clients, fitting = ClientIndex(), Fitting(columns, scale)
    folder.mkdir(parents=True, exist_ok=True)
    spools = [folder / f"rows-{place}.arrow" for place in range(len(files))]
    for piece in _all(files, columns, spools):
        usable = _first_look(clients, piece)
        if encoders is None:
            rows = usable & (piece.times < fit_before)
            if fit_on is not None:
                rows &= fit_on(piece.ids.values)[piece.ids.codes]
            fitting.add(piece, rows)
        progress("read", len(piece))
    if not clients.places:
        raise WeftError(f"{', '.join(path.name for path in files)}: no events before their `until`")
    encoders = encoders or fitting.done()
    starts = np.zeros(len(clients.counts) + 1, dtype=np.int64)
    np.cumsum(clients.counts, out=starts[1:])
    store_arrays(folder, int(starts[-1]), encoders)
    filled = starts[:-1].copy()
    for piece in _all(files, columns, spools):
        _write(folder, filled, clients, encoders, piece)
        progress("encoded", len(piece))
    _look_at_clients(clients)
    _order(folder, starts, sorted(clients.disordered))
    arrays = _opened(folder)
    for array in arrays.values():
        array.flush()
    for spool in spools:
        spool.unlink(missing_ok=True)
    return Store(
        encoders=encoders,
        starts=starts,
        codes=np.asarray(arrays["codes"]),
        numbers=np.asarray(arrays["numbers"]),
        times=np.asarray(arrays["times"]),
        ids=tuple(clients.places),
        labels=tuple(clients.labels),
        until=np.where(np.isfinite(clients.until), clients.until, clients.last),
        remarks=(*clients.remarks.lines(), *clients.notes),
    )


def _all(
    files: Sequence[Path], columns: EventColumns, spools: Sequence[Path]
) -> Iterator[EventPiece]:
    for path, spool in zip(files, spools, strict=True):
        yield from ahead(pieces(path, columns, spool))


def _look_at_clients(clients: ClientIndex) -> None:
    """What is to be said of clients, once all of their events are known."""
    names = list(clients.places)
    empty = np.flatnonzero(clients.counts == 0)
    if len(empty):
        clients.notes.append(
            f"{len(empty):,} clients have no event before their `until`: there is nothing to read "
            f"(the first: {names[empty[0]]!r})"
        )
    plain: dict[str, str] = {}
    twins = [(name, plain.setdefault(name.strip().casefold(), name)) for name in names]
    alike = [(name, other) for name, other in twins if name != other]
    if alike:
        clients.notes.append(
            f"{len(alike):,} ids differ from another by spaces or capitals alone, and are taken as "
            f"clients of their own, perhaps in another split (the first: {alike[0][0]!r} and "
            f"{alike[0][1]!r})"
        )


def _first_look(clients: ClientIndex, piece: EventPiece) -> np.ndarray:
    """Count a piece's events; (rows,) which of them may be read."""
    if (piece.ids.codes < 0).any():
        row = int((piece.ids.codes < 0).argmax())
        raise WeftError(f"{piece.where(row)} has no client: every event says whose it is")
    if not np.isfinite(piece.times).all():
        row = int((~np.isfinite(piece.times)).argmax())
        raise WeftError(
            f"{piece.where(row)} has no time: events are read in order, so each says when it was; "
            "fill it in, or leave the row out"
        )
    remark = clients.remarks.add
    own = clients.of(piece.ids)  # (rows,)
    _check_labels(clients, piece, own)
    usable = np.ones(len(piece), dtype=bool)
    if piece.until is not None:
        np.minimum.at(clients.until, own, np.where(np.isnan(piece.until), np.inf, piece.until))
        usable = piece.times < np.where(np.isnan(piece.until), np.inf, piece.until)
        remark("are from after their `until`, the future: left out", ~usable, piece)
    for name, values in piece.numbers.items():
        remark(f"have an infinite {name}: taken as the largest", np.isposinf(values), piece)
        remark(f"have a {name} of minus infinity: taken as the least", np.isneginf(values), piece)
        remark(f"have no {name}: read as missing", np.isnan(values), piece)
    remark("are dated after today: read as they are", piece.times > time() / SECONDS, piece)
    late = _disorder(clients, piece, own)
    remark("stand behind a later one of their client: sorted", late, piece)
    np.add.at(clients.counts, own[usable], 1)
    return usable


def _disorder(clients: ClientIndex, piece: EventPiece, own: np.ndarray) -> np.ndarray:
    """(rows,) which events are earlier than one of their client that stands before them."""
    order = np.argsort(own, kind="stable")
    sorted_own, times = own[order], piece.times[order]
    starts = np.flatnonzero(np.r_[True, sorted_own[1:] != sorted_own[:-1]])
    before = np.r_[-np.inf, times[:-1]]
    before[starts] = clients.last[sorted_own[starts]]
    late = np.zeros(len(piece), dtype=bool)
    late[order] = times < before
    clients.disordered |= set(own[late].tolist())
    np.maximum.at(clients.last, own, piece.times)
    return late


def _check_labels(clients: ClientIndex, piece: EventPiece, own: np.ndarray) -> None:
    if piece.labels is None:
        return
    codes = piece.labels.codes
    pairs, first = np.unique(own * (len(piece.labels.values) + 1) + codes + 1, return_index=True)
    for pair, row in zip(pairs, first, strict=True):
        place, code = divmod(int(pair), len(piece.labels.values) + 1)
        if not code:
            continue
        label = piece.labels.values[code - 1]
        known = clients.labels[place]
        if known is not None and known != label:
            client = piece.ids.values[piece.ids.codes[row]]
            raise WeftError(
                f"{piece.where(row)}: the label of client {client!r} changes from {known!r} to "
                f"{label!r}; a client has one label: give each period an id of its own"
            )
        clients.labels[place] = label


def store_arrays(folder: Path, events: int, encoders: Encoders) -> dict[str, Any]:
    """The arrays of a store as files of a folder, empty, open to be written."""
    shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
        "codes": (np.uint16, (events, len(encoders.codes))),
        "numbers": (np.float32, (events, len(encoders.numbers))),
        "times": (np.float64, (events,)),
    }
    return {
        name: np.lib.format.open_memmap(folder / f"{name}.npy", "w+", kind, shape)
        for name, (kind, shape) in shapes.items()
    }


def _opened(folder: Path) -> dict[str, Any]:
    """The arrays of a store, to be changed. What was touched counts as memory until they close."""
    return {
        name: np.load(folder / f"{name}.npy", mmap_mode="r+")
        for name in ("codes", "numbers", "times")
    }


def _write(
    folder: Path,
    filled: np.ndarray,
    clients: ClientIndex,
    encoders: Encoders,
    piece: EventPiece,
) -> None:
    """Put a piece's events behind those that their clients have already."""
    usable = np.ones(len(piece), dtype=bool)
    if piece.until is not None:
        usable = piece.times < np.where(np.isnan(piece.until), np.inf, piece.until)
    own = np.array([clients.places[v] for v in piece.ids.values], dtype=np.int64)[piece.ids.codes]
    rows = np.flatnonzero(usable)
    rows = rows[np.argsort(own[rows], kind="stable")]
    clients_of, first, sizes = np.unique(own[rows], return_index=True, return_counts=True)
    rank = np.arange(len(rows)) - np.repeat(first, sizes)
    places = np.repeat(filled[clients_of], sizes) + rank
    filled[clients_of] += sizes
    codes, numbers = encoders.encode(piece)
    for column, name in zip(codes.T, encoders.columns.categories, strict=True):
        unseen = usable & (column == UNKNOWN)
        coded = piece.categories[name]
        clients.remarks.add(
            f"have a {name} that training never saw: read as unknown",
            unseen,
            piece,
            lambda row, coded=coded: f": {coded.values[coded.codes[row]]!r}",
        )
    values = {"codes": codes, "numbers": numbers, "times": piece.times}
    for start in range(0, len(rows), TOGETHER):
        some = slice(start, start + TOGETHER)
        for name, array in _opened(folder).items():
            array[_span(places[some])] = values[name][_span(rows[some])]


def _span(places: np.ndarray) -> np.ndarray | slice:
    """The same places, as a slice where they follow one another: it copies faster."""
    if len(places) and (np.diff(places) == 1).all():
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


def _order(folder: Path, starts: np.ndarray, clients: Sequence[int]) -> None:
    """Sort the events of these clients by time; events at one time keep the order of the file."""
    arrays: dict[str, Any] = {}
    for place, client in enumerate(clients):
        if place % CLIENTS_TOGETHER == 0:
            arrays = _opened(folder)
        span = slice(int(starts[client]), int(starts[client + 1]))
        order = np.argsort(arrays["times"][span], kind="stable")
        for array in arrays.values():
            array[span] = array[span][order]
