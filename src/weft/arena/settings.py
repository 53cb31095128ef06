"""Settings files: one TOML file says what is trained and how, or what is compared.

    mixer = "longformer(window=129)"         # what `weft train` trains
    objective = "permuted_lm"                # what it learns; left out: what the task asks for

    [task]
    spec = "listops(length=512)"
    [model]                                  # weft.arena.model.ModelSetting
    layers = 2
    [training]                               # weft.training.Settings
    steps = 500
    [[phase]]                                # weft.training.Phase: none, or one after another
    steps = 100
    objective = "masked_lm(rate=0.1)"
    [mixers]                                 # what `weft compare --recipe` compares
    full = "full"
    bigbird = {mixer = "bigbird(block=64)", model = {heads = 1}, training = {lr = 5e-4}}
    [[modification]]                         # what `weft ablate` tries, see weft.arena.ablate
    name = "RMSNorm"
    model = {norm = "rms"}

A setting that is left out has its default; one that does not exist is refused.
"""

from __future__ import annotations

import copy
import dataclasses
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from weft.arena.files import read_json, replace_file
from weft.arena.model import ModelSetting
from weft.arena.tables import Table, changed, made, settings_of, to_toml
from weft.errors import WeftError
from weft.mixers import MIXERS
from weft.objectives import OBJECTIVES
from weft.registry import suggest
from weft.training.curriculum import Phase
from weft.training.settings import Settings

_SECTIONS = (
    *("task", "mixer", "objective", "model", "training", "phase", "mixers", "modification"),
    "unfused",
)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One training: a mechanism, inside a model, on a task."""

    task: str
    mixer: str = "full"
    objective: str = ""  # what is learned and scored; "": the task's own
    model: ModelSetting = field(default_factory=ModelSetting)
    training: Settings = field(default_factory=Settings)
    phases: tuple[Phase, ...] = ()
    unfused: bool = False  # attention by the plain equation: the straw man, not the baseline

    def tables(self) -> Table:
        """Plain values, as a settings file has them; `experiment` reads them back."""
        found: Table = {"mixer": self.mixer, "task": {"spec": self.task}}
        found |= {"model": settings_of(self.model), "training": settings_of(self.training)}
        if self.objective:
            found["objective"] = self.objective
        if self.phases:
            found["phase"] = [settings_of(phase) for phase in self.phases]
        if self.unfused:
            found["unfused"] = True
        return found

    def toml(self) -> str:
        """The settings file of this experiment."""
        return to_toml(self.tables())


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a settings file says: an experiment, and the contenders of a comparison by label."""

    experiment: Experiment
    mixers: dict[str, Experiment] = field(default_factory=dict)


def experiment(tables: Table) -> Experiment:
    """The experiment that the tables of a settings file describe."""
    for key in tables:
        if key not in _SECTIONS:
            raise WeftError(f"settings have no {key!r}; {suggest(key, _SECTIONS)}")
    phases = tables.get("phase", [])
    if not isinstance(phases, list):
        raise WeftError(f"phases are written [[phase]], one table each; got {phases!r}")
    return Experiment(
        task=_task(tables),
        mixer=_mixer(tables.get("mixer", "full")),
        objective=_objective(tables.get("objective", "")),
        model=made(ModelSetting, tables.get("model", {}), "model"),
        training=made(Settings, tables.get("training", {}), "training"),
        phases=tuple(made(Phase, phase, "phase") for phase in phases),
        unfused=bool(tables.get("unfused", False)),
    )


def recipe(tables: Table) -> Recipe:
    """The experiment of the tables, and one for each entry of [mixers]."""
    base = experiment(tables)
    entries = tables.get("mixers", {})
    if not isinstance(entries, dict):
        raise WeftError(f"[mixers] is a table of labels and mechanisms; got {entries!r}")
    return Recipe(
        experiment=base,
        mixers={label: _contender(base, label, entry) for label, entry in entries.items()},
    )


def _contender(base: Experiment, label: str, entry: Any) -> Experiment:
    entry = {"mixer": entry} if isinstance(entry, str) else entry
    where = f"mixers.{label}"
    if isinstance(entry, dict):
        entry = {"mixer": label, **entry}
    return modified(base, entry, where)


def modified(base: Experiment, entry: Any, where: str) -> Experiment:
    """The experiment with another mixer, and other settings of model and training."""
    if not isinstance(entry, dict):
        raise WeftError(f"{where} is a mechanism or a table; got {entry!r}")
    known = ("mixer", "model", "training")
    for key in entry:
        if key not in known:
            raise WeftError(f"[{where}] has no setting {key!r}; {suggest(key, known)}")
    return dataclasses.replace(
        base,
        mixer=_mixer(entry.get("mixer", base.mixer)),
        model=changed(base.model, entry.get("model", {}), f"{where}.model"),
        training=changed(base.training, entry.get("training", {}), f"{where}.training"),
    )


def read_settings(source: str | Path, changes: Sequence[str] = ()) -> Recipe:
    """A settings file, or one of weft's recipes by name; `changes` such as training.steps=100."""
    return recipe(read_tables(source, changes))


def read_tables(source: str | Path, changes: Sequence[str] = ()) -> Table:
    """The tables of a settings file, or of one of weft's recipes by name."""
    path = Path(source)
    if path.suffix == ".toml" or path.exists():
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as cause:
            raise WeftError(f"cannot read the settings {str(path)!r}: {cause.strerror}") from cause
    else:
        text = _shipped(str(source))
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as cause:
        raise WeftError(f"{source} is no TOML: {cause}") from cause
    return with_changes(tables, changes)


def recipes() -> list[str]:
    """The names of the settings files that come with weft."""
    folder = resources.files("weft.arena") / "recipes"
    names = [entry.name for entry in folder.iterdir()]
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def _shipped(name: str) -> str:
    if name not in recipes():
        raise WeftError(f"no recipe named {name!r}; {suggest(name, recipes())}")
    return (resources.files("weft.arena") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")


def with_changes(tables: Table, changes: Sequence[str]) -> Table:
    """The tables with settings changed by `section.setting=value`, the value as in TOML."""
    found = copy.deepcopy(tables)
    for change in changes:
        path, equals, text = change.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise WeftError(f"a change reads section.setting=value; got {change!r}")
        place = found
        for key in keys[:-1]:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise WeftError(f"{path} is no place for a setting: {key!r} holds {place!r}")
        place[keys[-1]] = _value(text.strip())
    return found


def _value(text: str) -> Any:
    """As TOML reads it; what TOML cannot read is a text, so that quotes may be left out."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _task(tables: Table) -> str:
    task = tables.get("task")
    if isinstance(task, dict):
        if set(task) - {"spec"}:
            raise WeftError(
                f"[task] has the setting 'spec' alone, such as \"listops(length=512)\"; got {task}"
            )
        task = task.get("spec")
    if not isinstance(task, str):
        raise WeftError('settings need a task: [task] and spec = "listops", say')
    return task


def _mixer(spec: Any) -> str:
    """The spec string, as the mechanism itself writes it."""
    if not isinstance(spec, str):
        raise WeftError(f'a mixer is a spec such as "longformer(window=129)"; got {spec!r}')
    return str(MIXERS.parse(spec))


def _objective(spec: Any) -> str:
    """The spec string, as the objective itself writes it; "" for the task's own."""
    if not isinstance(spec, str):
        raise WeftError(f'an objective is a spec such as "masked_lm(rate=0.2)"; got {spec!r}')
    return str(OBJECTIVES.parse(spec)) if spec else ""


def write_experiment(folder: Path, one: Experiment) -> None:
    """Keep the settings in a run's folder, unless they are there."""
    path = folder / "settings.toml"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, one.toml().encode())


def read_experiment(folder: Path) -> Experiment:
    """The settings of a run of `weft train`, or of a cell of `weft compare`."""
    job = read_json(folder / "job.json")
    if job is not None:
        return experiment(job["experiment"])
    if not (folder / "settings.toml").is_file():
        raise WeftError(
            f"{folder} is no run: it has neither settings.toml (weft train) nor job.json (a cell "
            "of weft compare)"
        )
    return read_settings(folder / "settings.toml").experiment
