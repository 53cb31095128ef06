"""Ablate: one base model, many modifications of it, a few seeds each to an early step.

    RUN/ablation.json    the base, its modifications, seeds and steps
    RUN/                 a comparison (`arena/grid/compare.py`): all modifications and seeds, early
    RUN/final/           another one: every modification once, to the final step, if asked for
    RUN/speed.jsonl      steps per second, measured apart, if asked for
    RUN/ablation.jsonl   the table: a row for each modification

A settings file holds the base as usual, and the modifications one table each:

    [[modification]]
    name = "GeGLU"
    published = "GeGLU"                      # its row of the published study, if it has one
    model = {feedforward = "gated"}          # as in [model]; also mixer = "...", training = {...}

The protocol is that of Narang et al. 2021, https://arxiv.org/abs/2102.11972: the spread over seeds
at an early step says which differences are worth looking at; early and final loss agree well.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.arena.ablation.published import published
from weft.arena.experiment.settings import (
    CHANGES,
    Experiment,
    experiment,
    modified,
    read_tables,
    recipe,
)
from weft.arena.grid.compare import Comparison, GridOptions, Listener, compare
from weft.arena.grid.grid import Grid, check_format
from weft.config import Table, config, read, write
from weft.errors import WeftError
from weft.files import read_json, write_json
from weft.plugins import module_names, required
from weft.registry import suggest

BASE = "base"
FORMAT = 2  # 1: weft 0.1
_WORDS = ("name", "published", *CHANGES, "said")


@config
class Modification:
    """The base with something changed."""

    name: str
    experiment: Experiment
    change: str  # in the words of the settings file
    published: str | None = None  # the row of the published study that changes the same


@config
class Ablation:
    """What is tried; `modifications` begins with the base itself."""

    modifications: tuple[Modification, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    final_steps: int | None = None  # of one longer training each; None: none
    plugins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [own.name for own in self.modifications]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise WeftError(f"modifications have names of their own; twice there: {twice}")
        if names[:1] != [BASE]:
            raise WeftError(f"modifications begin with {BASE!r}; got {names[:1]}")

    def grid(self) -> Grid:
        """The early trainings."""
        return self._grid(self.seeds, None)

    def final_grid(self) -> Grid:
        """The longer trainings, by the first seed."""
        return self._grid(self.seeds[:1], self.final_steps)

    def _grid(self, seeds: tuple[int, ...], steps: int | None) -> Grid:
        contenders = {own.name: _lasting(own.experiment, steps) for own in self.modifications}
        return Grid(
            contenders=contenders, seeds=seeds, plugins=self.plugins, span_samples=0, base=BASE
        )

    def only(self, names: Sequence[str]) -> Ablation:
        """The base, and of the modifications those of these names."""
        known = {own.name: own for own in self.modifications}
        for name in names:
            if name not in known:
                raise WeftError(f"no modification named {name!r}; {suggest(name, known)}")
        kept = tuple(own for own in self.modifications if own.name in {BASE, *names})
        return dataclasses.replace(self, modifications=kept)


def _lasting(one: Experiment, steps: int | None) -> Experiment:
    if steps is None:
        return one
    return dataclasses.replace(one, training=dataclasses.replace(one.training, steps=steps))


def read_ablation(source: str | Path, changes: Sequence[str] = (), **given: Any) -> Ablation:
    """The ablation of a settings file, or of one of weft's recipes by name.

    Changes such as training.steps=100 concern the base, and so all of its modifications.
    """
    tables, others = read_tables(source, changes)
    entries = tables.get("modification", [])
    if not isinstance(entries, list) or not entries:
        raise WeftError(f"{source} has no modifications; write [[modification]], one table each")
    base = recipe({key: tables[key] for key in tables if key != "mixers"}, others).experiment
    found = [Modification(name=BASE, experiment=base, change="", published="vanilla")]
    return Ablation(modifications=(*found, *(_entry(base, own) for own in entries)), **given)


def _entry(base: Experiment, entry: Any) -> Modification:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise WeftError(f"a [[modification]] is a table with a name; got {entry!r}")
    where = f"modification {entry['name']}"
    for key in entry:
        if key not in _WORDS:
            raise WeftError(f"[{where}] has no setting {key!r}; {suggest(key, _WORDS)}")
    changes = {key: entry[key] for key in CHANGES if key in entry}
    if not changes:
        raise WeftError(f"[{where}] changes nothing; give mixer, model or training")
    if "published" in entry:
        published(entry["published"])  # refuses a name that is not there
    return Modification(
        name=entry["name"],
        experiment=modified(base, changes, where, CHANGES),
        change=_words(entry.get("said", changes)),
        published=entry.get("published"),
    )


def _words(changes: Table) -> str:
    """`norm.kind = "rms"`, without the names of the sections."""
    found: list[str] = []
    for key, value in changes.items():
        found += _settings(value) if isinstance(value, dict) else _settings({key: value})
    return ", ".join(found)


def _settings(table: Table, before: str = "") -> list[str]:
    found: list[str] = []
    for key, value in table.items():
        if isinstance(value, dict):
            found += _settings(value, f"{before}{key}.")
        else:
            found.append(f"{before}{key} = {json.dumps(value, ensure_ascii=False)}")
    return found


def resumed(folder: Path) -> Ablation:
    """The ablation of a folder."""
    path = folder / "ablation.json"
    found = read_json(path)
    if found is None:
        raise WeftError(f"{folder} holds no ablation: it has no ablation.json")
    check_format(path, found, FORMAT)
    required(module_names(found.get("plugins", []), str(path)), f"the ablation in {folder}")
    tried = found.get("modifications")
    if not (isinstance(tried, list) and all(isinstance(own, dict) for own in tried)):
        raise WeftError(f"{path}: modifications is a list of tables; got {tried!r:.80}")
    given = {key: found[key] for key in found if key not in ("format", "command")}
    given["modifications"] = [
        {**own, "experiment": experiment(own.get("experiment"))} for own in tried
    ]
    return read(Ablation, given, str(path))


def ablate(
    wanted: Ablation,
    folder: str | Path,
    options: GridOptions | None = None,
    listener: Listener | None = None,
    *,
    command: str = "",
) -> Comparison:
    """Run what is left of an ablation, early trainings first; a rerun goes on where it was."""
    folder = Path(folder)
    options = dataclasses.replace(options or GridOptions(), together=True)
    kept = {"format": FORMAT, "command": command, **write(wanted, brief=True)}
    if not (folder / "ablation.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "ablation.json", kept)
    found = compare(wanted.grid(), folder, options, listener, command=command)
    write_json(folder / "ablation.json", kept)  # other final steps than before are welcome
    if wanted.final_steps is None or not found.finished:
        return found
    final = compare(wanted.final_grid(), folder / "final", options, listener, command=command)
    return Comparison(folder, [*found.rows, *final.rows], final.missing)
