"""Settings files: one TOML file says what is trained and how, or what is compared.

    task = "listops(length=512)"             # or a table: name = "listops", length = 512
    mixer = "longformer(window=129)"         # short for the mixer of [model]
    objective = "permuted_lm"                # what is learned; left out: what the task asks for

    [model]                                  # weft.arena.experiment.model.Model: trunk and head
    layers = 2                               # a name that occurs once may stand here: this is
    dim = 64                                 # trunk.stack.layers, and trunk.stack.frame.dim
    stack.dropout = 0.1                      # one that occurs twice says which it is
    [training]                               # weft.training.TrainingSettings
    steps = 500
    [[phase]]                                # weft.training.Phase: none, or one after another
    steps = 100
    objective = "masked_lm(rate=0.1)"
    [marks]                                  # weft.models.usage.mark_rules: which tokens are global
    is_global = "first(1) | token(46)"
    [mixers]                                 # what `weft compare --recipe` compares
    full = "full"
    bigbird = {mixer = "bigbird(block=64)", model = {heads = 1}, training = {lr = 5e-4}}
    [[modification]]                         # what `weft ablate` tries (arena/ablation)
    name = "RMSNorm"
    model = {norm.kind = "rms"}

A setting that is left out has its default; one that does not exist is refused. Files of weft 0.1
are read as well (`legacy.py`); they are told by their `[task] spec = ...`.

People write TOML; programs write JSON (a run's `experiment.json`, a grid's `grid.json`) of the same
tables, so that weft needs no writer of TOML.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import tomllib
from collections.abc import Sequence
from dataclasses import field
from importlib import resources
from pathlib import Path
from typing import Any

from weft.arena.experiment.legacy import converted, is_legacy
from weft.arena.experiment.model import Model
from weft.arena.tasks.base import TaskConfig
from weft.config import Table, changed, config, read, write
from weft.errors import WeftError, suggest
from weft.files import read_object, read_text, write_json
from weft.models.saving import model_folder
from weft.models.usage.mark_rules import read_rules
from weft.objectives import ObjectiveConfig
from weft.training.curriculum import Phase
from weft.training.settings import TrainingSettings

_SECTIONS = ("task", "mixer", "objective", "model", "training", "phase", "marks", "unfused")
_LISTS = ("mixers", "modification")  # of what is compared
_PATHS = ("data", "valid_file", "test_file", "tokens", "folder")  # settings of tasks that are files
CHANGES = ("mixer", "model", "training")  # what may differ among those


@config
class Experiment:
    """One training: a model, with its mechanism, on a task."""

    task: TaskConfig
    objective: ObjectiveConfig | None = None  # what is learned and scored; None: the task's own
    model: Model = field(default_factory=Model)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    phase: tuple[Phase, ...] = ()
    marks: dict[str, str] = field(default_factory=dict)  # rules by mark; mixers that know it get it
    unfused: bool = False  # attention by the plain equation: the straw man, not the baseline

    def __post_init__(self) -> None:
        rules = {name: str(rule) for name, rule in read_rules(self.marks).items()}
        object.__setattr__(self, "marks", rules)

    @property
    def mixer(self) -> str:
        """The mechanism, as a spec."""
        return self.model.mixer

    def tables(self) -> Table:
        """Plain values, as a settings file has them; `experiment` reads them back."""
        return write(self, brief=True)


@config
class Recipe:
    """What a settings file says: an experiment, and the contenders of a comparison by label."""

    experiment: Experiment
    mixers: dict[str, Experiment] = field(default_factory=dict)


def experiment(tables: Any) -> Experiment:
    """The experiment that the tables of a settings file describe."""
    tables = converted(tables) if is_legacy(tables) else tables
    if not isinstance(tables, dict):
        raise WeftError(f"settings are tables; got {tables!r}")
    if "task" not in tables:
        raise WeftError('settings need a task: task = "listops(length=512)", say')
    base = Experiment(task=read(TaskConfig, tables["task"], "task"))
    own = {key: value for key, value in tables.items() if key not in (*_LISTS, "task")}
    return modified(base, own)


def modified(
    base: Experiment, entry: Any, where: str = "", known: Sequence[str] = _SECTIONS
) -> Experiment:
    """The experiment with other settings, whose names may be short."""
    if not isinstance(entry, dict):
        raise WeftError(f"{where} is a mechanism or a table; got {entry!r}")
    for key in entry:
        if key not in known:
            what = f"{where} has no setting" if where else "settings have no"
            raise WeftError(f"{what} {key!r}; {suggest(key, [*known, *([] if where else _LISTS)])}")
    if not isinstance(entry.get("phase", []), list):
        raise WeftError(f"phases are written [[phase]], one table each; got {entry['phase']!r}")
    given = {key: value for key, value in entry.items() if key != "mixer"}
    if "mixer" in entry:
        model = entry.get("model", {})
        given["model"] = {"mixer": entry["mixer"], **model} if isinstance(model, dict) else model
    return changed(base, given, where)


def with_mixer(one: Experiment, mixer: Any) -> Experiment:
    """The experiment with another mechanism in all layers."""
    return modified(one, {"mixer": mixer})


def recipe(tables: Table, changes: Table | None = None) -> Recipe:
    """The experiment of the tables with some changes, and one for each entry of [mixers]."""
    tables = converted(tables) if is_legacy(tables) else tables
    changes = dict(changes or {})
    tables = _merged(tables, {key: changes.pop(key) for key in _LISTS if key in changes})
    if not isinstance(changes.get("task", {}), dict):
        tables = {**tables, "task": changes.pop("task")}
    base = modified(experiment(tables), changes)
    entries = tables.get("mixers", {})
    if not isinstance(entries, dict):
        raise WeftError(f"[mixers] is a table of labels and mechanisms; got {entries!r}")
    found = {label: _contender(base, label, entry) for label, entry in entries.items()}
    return Recipe(experiment=base, mixers=found)


def _contender(base: Experiment, label: str, entry: Any) -> Experiment:
    entry = {"mixer": entry} if isinstance(entry, str) else entry
    whole = {"mixer": label, **entry} if isinstance(entry, dict) else entry
    return modified(base, whole, f"mixers.{label}", CHANGES)


def read_settings(source: str | Path, changes: Sequence[str] = ()) -> Recipe:
    """A settings file, or one of weft's recipes by name; `changes` such as training.steps=100."""
    return recipe(*read_tables(source, changes))


def read_tables(source: str | Path, changes: Sequence[str] = ()) -> tuple[Table, Table]:
    """The tables of a settings file, or of one of weft's recipes by name, and those of changes."""
    path = Path(source)
    folder = path.is_dir() and str(source) in recipes()  # one of that name is not meant
    if path.suffix in (".toml", ".json") or (path.exists() and not folder):
        text = read_text(path)
    else:
        text = _shipped(str(source))
    try:
        tables = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as cause:  # nested too deeply
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise WeftError(f"{source} is not valid {kind}: {cause}") from cause
    if not isinstance(tables, dict):
        raise WeftError(f"settings are tables; {source} holds {tables!r:.60}")
    if is_legacy(tables):  # changes of such a file are in its words
        return converted(_merged(tables, tables_of(changes))), {}
    return tables, tables_of(changes)


def recipes() -> list[str]:
    """The names of the settings files that come with weft."""
    folder = resources.files("weft.arena") / "recipes"
    names = [entry.name for entry in folder.iterdir()]
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def _shipped(name: str) -> str:
    if name not in recipes():
        known = suggest(name, recipes())
        raise WeftError(f"no recipe named {name!r}; {known}. Nor is it a file")
    return (resources.files("weft.arena") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")


def tables_of(changes: Sequence[str]) -> Table:
    """The tables that changes such as `section.setting=value` make, the value as in TOML."""
    found: Table = {}
    for change in changes:
        path, equals, text = change.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise WeftError(f"a change reads section.setting=value; got {change!r}")
        table: Any = _value(text.strip())
        for key in reversed(keys):
            table = {key: table}
        found = _merged(found, table)
    return found


def _merged(old: Any, new: Any) -> Any:
    """The tables with others in their place, key by key."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return copy.deepcopy(new)
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}


def _value(text: str) -> Any:
    """As TOML reads it; what TOML cannot read is a text, so that quotes may be left out."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def located(one: Experiment) -> Experiment:
    """The experiment with the files of its task by absolute paths, so that a run can be scored from
    any folder."""
    known = {each.name for each in dataclasses.fields(one.task)}
    found = {name: _absolute(getattr(one.task, name)) for name in _PATHS if name in known}
    return dataclasses.replace(one, task=dataclasses.replace(one.task, **found))


def _absolute(path: Any) -> Any:
    if isinstance(path, tuple):
        return tuple(map(_absolute, path))
    return os.path.abspath(path) if path and path != "bytes" else path


def write_experiment(folder: Path, one: Experiment) -> None:
    """Keep the settings in a run's folder, unless they are there."""
    if not any((folder / name).exists() for name in ("experiment.json", "settings.toml")):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "experiment.json", located(one).tables())


def read_experiment(folder: Path) -> Experiment:
    """The settings of a run of `weft train`, or of a cell of `weft compare`."""
    job = folder / "job.json"
    if job.is_file():
        return experiment(read_object(job, "experiment")["experiment"])
    for name in ("experiment.json", "settings.toml"):  # the latter: weft 0.1
        if (folder / name).is_file():
            return read_settings(folder / name).experiment
    if (folder / "cells").is_dir():
        model_folder(folder)  # says that it is a comparison, and where its models are
    raise WeftError(
        f"{folder} is not a run: it has neither experiment.json (weft train) nor job.json (a cell "
        "of weft compare)"
    )
