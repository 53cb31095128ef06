"""Reads the files of a run folder.

Any of them may be missing: what could not be read becomes a sentence in `RunFiles.missing`, and the
report is written from the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.errors import WeftError
from weft.files import read_json
from weft.report.read.fields import label, length, number, possible
from weft.rows import Row, read

DONE = "done"
PICTURES = {".svg": "image/svg+xml", ".png": "image/png"}
_LARGEST_PICTURE = 4 << 20  # bytes; pictures are embedded in the page


@dataclass(frozen=True)
class Curve:
    """The metrics of one cell: rows of kind train, and of kind valid."""

    row: Row
    train: list[Row]
    valid: list[Row]


@dataclass(frozen=True)
class CellClasses:
    """What accuracy does not say of the classifier of one cell."""

    label: str
    length: int
    macro_f1: float
    calibration_error: float
    classes: list[Row]
    reliability: list[Row]


@dataclass(frozen=True)
class Picture:
    """An image file of a pattern."""

    label: str
    path: Path
    note: str = ""

    @property
    def kind(self) -> str:
        """Its media type."""
        return PICTURES[self.path.suffix.lower()]


@dataclass
class RunFiles:
    """The files of a run, in memory."""

    folder: Path
    rows: list[Row] = field(default_factory=list)  # one for each cell that has ended
    grid: dict[str, Any] = field(default_factory=dict)
    baselines: dict[str, float] = field(default_factory=dict)
    curves: list[Curve] = field(default_factory=list)
    groups: list[Row] = field(default_factory=list)
    classes: list[CellClasses] = field(default_factory=list)
    spans: list[Row] = field(default_factory=list)
    timelines: list[Row] = field(default_factory=list)  # of `weft explain`, one per event
    speed: list[Row] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    published: list[Row] = field(default_factory=list)
    ablation: list[Row] = field(default_factory=list)  # of `weft ablate`, one per modification
    unfinished: list[str] = field(default_factory=list)  # cells with a folder and no row yet
    missing: list[str] = field(default_factory=list)  # sentences about what could not be read
    of_training: bool = False  # one folder of `weft train`

    def first(self, key: str) -> str:
        """The first value that any cell has for a key, as text."""
        return next((str(row[key]) for row in self.rows if row.get(key)), "")

    @property
    def task(self) -> str:
        """The spec of the task; only its name where cells differ in it, as with several lengths."""
        specs = {row.get("task_spec") for row in self.rows}
        return self.first("task_spec" if len(specs) == 1 else "task") or self.first("task")

    @property
    def title(self) -> str:
        """The task in words; its name where rows do not have them."""
        name = self.first("task") or self.first("task_spec").partition("(")[0]
        return self.first("task_title") or name.replace("_", " ")

    @property
    def done(self) -> list[Row]:
        """The cells that finished."""
        return [row for row in self.rows if row.get("status", DONE) == DONE]

    @property
    def failed(self) -> list[Row]:
        """The cells that did not finish."""
        return [row for row in self.rows if row.get("status", DONE) != DONE]


def read_run(folder: str | Path) -> RunFiles:
    """Read a run folder; raises only where it is not one."""
    folder = Path(folder)
    known = ("rows.jsonl", "grid.json", "metrics.jsonl")
    if not any((folder / name).is_file() for name in known):
        raise WeftError(
            f"{str(folder)!r} is not a run folder: `weft compare` and `weft train` write "
            f"{', '.join(known[:-1])} or {known[-1]}"
        )
    run = RunFiles(folder)
    training = not any((folder / name).is_file() for name in known[:-1])
    if not training:
        run.grid = _mapping(run, "grid.json", "The settings of the grid")
        run.rows = _last_of_each(_rows(run, folder / "rows.jsonl", "Results of cells"))
    if not run.rows and (folder / "metrics.jsonl").is_file():
        run.rows = [_training_row(run)]
        _of_training(run)
    if not run.of_training:
        rules = _mapping(run, "baselines.json", "The scores of trivial rules")
        run.baselines = {name: v for name in rules if (v := number(rules, name)) is not None}
    _read_cells(run)
    run.groups += _rows(run, folder / "groups.jsonl")
    run.spans = _rows(run, folder / "spans.jsonl")
    run.timelines = _rows(run, folder / "timelines.jsonl")
    run.speed = _rows(run, folder / "speed.jsonl")
    run.pictures = _pictures(run)
    run.published = _published(run)
    run.ablation = _rows(run, folder / "ablation.jsonl")
    return run


def _rows(run: RunFiles, path: Path, what: str = "") -> list[Row]:
    """The rows of a file; on failure none, and a sentence in `missing` if it is expected."""
    if not path.is_file():
        if what:
            run.missing.append(f"{what} are missing: there is no {path.name}.")
        return []
    try:
        return [{key: possible(key, value) for key, value in row.items()} for row in read(path)]
    except (WeftError, OSError, UnicodeDecodeError) as cause:
        run.missing.append(f"{path.relative_to(run.folder)} could not be read: {cause}.")
        return []


def _json(run: RunFiles, path: Path) -> Any:
    try:
        return read_json(path)
    except WeftError as cause:
        run.missing.append(f"{path.relative_to(run.folder)} could not be read: {cause}.")
        return None


def _mapping(run: RunFiles, name: str, what: str) -> dict[str, Any]:
    path = run.folder / name
    if not path.is_file():
        run.missing.append(f"{what} are missing: there is no {name}.")
        return {}
    found = _json(run, path)
    return found if isinstance(found, dict) else {}


def _last_of_each(rows: list[Row]) -> list[Row]:
    """The last row of each cell, which may have run several times."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = (row.get("task_spec"), label(row), length(row), row.get("seed"))
        found.pop(key, None)
        found[key] = row
    return list(found.values())


def _training_row(run: RunFiles) -> Row:
    """The row of a folder of `weft train`, as a run of one cell."""
    settings = _json(run, run.folder / "settings.json") if _there(run, "settings.json") else None
    outcome = _json(run, run.folder / "done.json") if _there(run, "done.json") else None
    settings, outcome = (v if isinstance(v, dict) else {} for v in (settings, outcome))
    run.grid, run.of_training = run.grid or settings, True
    named = settings.get("mixer") or _mixer_of(run) or run.folder.resolve().name
    flat = {key: value for key, value in outcome.items() if not isinstance(value, list | dict)}
    best = flat.get("best_score") if flat.get("model") == "best" else flat.get("score")
    flat |= {"valid_score": best, "train_seconds": flat.get("seconds")}
    ended = {"status": DONE} if outcome else {"status": "unfinished", "reason": "no done.json yet"}
    metrics = [row["metric"] for row in _rows(run, run.folder / "metrics.jsonl") if "metric" in row]
    scored = {"metric": metrics[-1]} if metrics else {}
    return {"label": str(named), "mixer": str(named), "cell": ".", **scored, **flat, **ended}


def _mixer_of(run: RunFiles) -> str:
    """The mechanism of the experiment of a training, by its name."""
    found = _json(run, run.folder / "experiment.json") if _there(run, "experiment.json") else None
    for name in ("model", "trunk", "stack", "mixer"):
        found = found.get(name) if isinstance(found, dict) else None
    several = found if isinstance(found, list) else [found]
    names = dict.fromkeys(
        str(one["name"]) for one in several if isinstance(one, dict) and "name" in one
    )
    return " and ".join(names)


def _of_training(run: RunFiles) -> None:
    """What the folder of a training says besides: scores of the test split, task, data, title."""
    row, usage = run.rows[0], {}
    for name in ("best", "last"):
        if not usage and _there(run, f"{name}/usage.json"):
            found = _json(run, run.folder / name / "usage.json")
            usage = found if isinstance(found, dict) else {}
    row |= {key: str(usage[key]) for key in ("task", "data") if usage.get(key)}
    columns, file = usage.get("columns"), str(usage.get("data", "")).partition(" (sha256")[0]
    if isinstance(columns, dict) and columns.get("label"):
        texts = [str(columns[name]) for name in ("text", "second") if columns.get(name)]
        what = f" from {' and '.join(texts)}" if texts else ""  # events have no column of texts
        row["task_title"] = f"{columns['label']}{what} of {file}"
    scores = _json(run, run.folder / "scores.json") if _there(run, "scores.json") else None
    if not isinstance(scores, dict):
        return
    row["metric"] = str(scores.get("metric"))
    names = {"test_score": "score", "test_rows": "count", "test_rows_whole": "rows of the split"}
    names |= {"macro_f1": "macro F1", "calibration_error": "calibration error", "r2": "R²"}
    names |= {"mean_absolute_error": "mean absolute error"}
    for key, name in names.items():
        if (value := number(scores, name)) is not None:
            row[key] = value
    rules = scores.get("trivial rules")
    if isinstance(rules, dict):
        run.baselines = {name: v for name in rules if (v := number(rules, name)) is not None}
    _add_classes(run, row, scores)


def _add_classes(run: RunFiles, row: Row, found: Any) -> None:
    if not isinstance(found, dict) or not isinstance(found.get("classes"), list):
        return
    bins = found.get("reliability")
    run.classes.append(
        CellClasses(
            *(label(row), length(row)),
            macro_f1=number(found, "macro F1") or 0.0,
            calibration_error=number(found, "calibration error") or 0.0,
            classes=[own for own in found["classes"] if isinstance(own, dict)],
            reliability=[own for own in bins if isinstance(own, dict)]
            if isinstance(bins, list)
            else [],
        )
    )


def _there(run: RunFiles, name: str) -> bool:
    return (run.folder / name).is_file()


def _read_cells(run: RunFiles) -> None:
    """Learning curves and scores by group of every cell; folders without a row are unfinished."""
    cells = run.folder / "cells"
    unread = {path.name for path in cells.iterdir() if path.is_dir()} if cells.is_dir() else set()
    for row in run.rows:
        own = _cell_folder(run.folder, row)
        unread.discard(own.name if own else None)
        if own is None or not (own / "metrics.jsonl").is_file():
            continue
        metrics = _rows(run, own / "metrics.jsonl")
        kinds = {kind: [m for m in metrics if m.get("kind") == kind] for kind in ("train", "valid")}
        run.curves.append(Curve(row, kinds["train"], kinds["valid"]))
        identity = {key: row.get(key) for key in ("label", "mixer", "length", "seed")}
        run.groups += [{**identity, **group} for group in _rows(run, own / "groups.jsonl")]
        if (own / "classes.json").is_file():
            _add_classes(run, row, _json(run, own / "classes.json"))
    run.unfinished = sorted(unread)


def _cell_folder(folder: Path, row: Row) -> Path | None:
    """The folder of a row, by its `cell` or by its label, length and seed."""
    place = row.get("cell") or f"cells/{label(row)}-{row.get('length')}-{row.get('seed')}"
    try:
        own = (folder / str(place)).resolve()
        inside = own.is_relative_to(folder.resolve()) and own.is_dir()
    except (OSError, ValueError):  # not a valid file name
        return None
    return own if inside else None


def _pictures(run: RunFiles) -> list[Picture]:
    """The pictures in pictures.json, then all others of the folder."""
    home = run.folder / "pictures"
    found: dict[Path, Picture] = {}
    index = _json(run, home / "pictures.json") if (home / "pictures.json").is_file() else None
    if index is None and (run.folder / "pictures.json").is_file():
        index = _json(run, run.folder / "pictures.json")
    for name, entry in _entries(index):
        file = entry.get("file") or entry.get("path")
        path = home / Path(str(file)).name if file else None
        if path and path.is_file() and path.suffix.lower() in PICTURES:
            note = str(entry.get("note") or entry.get("pattern") or entry.get("reason") or "")
            found[path] = Picture(str(entry.get("label") or name), path, note)
    for path in sorted(home.iterdir()) if home.is_dir() else []:
        drawn = any(other.with_suffix("") == path.with_suffix("") for other in found)
        if path.suffix.lower() in PICTURES and not drawn:
            found[path] = Picture(path.stem, path)
    large = [p for p in found.values() if p.path.stat().st_size > _LARGEST_PICTURE]
    run.missing += [f"The picture {p.path.name} is too large for the page." for p in large]
    return [picture for picture in found.values() if picture not in large]


def _published(run: RunFiles) -> list[Row]:
    path = run.folder / "published.json"
    return [
        {"mixer": name, **entry}
        for name, entry in _entries(_json(run, path) if path.is_file() else None)
        if number(entry, "score") is not None
    ]


def _entries(index: Any) -> list[tuple[str, dict[str, Any]]]:
    """A list of objects, or an object of names to objects, file names or numbers."""
    if isinstance(index, list):
        named = [(str(entry.get("label", "")), entry) for entry in index if isinstance(entry, dict)]
    elif isinstance(index, dict):
        named = list(index.items())
    else:
        named = []
    kinds = {str: "file", int: "score", float: "score"}
    plain = [(n, {kinds[type(e)]: e} if type(e) in kinds else e) for n, e in named]
    return [(str(name), entry) for name, entry in plain if isinstance(entry, dict)]
