"""A grid: mechanisms × seeds × lengths on one task, as plain values in `grid.json`."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from weft.arena.settings import Experiment, Recipe, experiment
from weft.arena.tasks import TASKS
from weft.errors import WeftError
from weft.mixers import MIXERS
from weft.registry import Registry
from weft.training.record import write_json

FORMAT = 1
DENSE = "full"
UNFUSED = "full, unfused"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training of the grid."""

    label: str
    length: int
    seed: int
    experiment: Experiment
    dense: bool  # the baseline

    @property
    def key(self) -> tuple[str, int, int]:
        """What tells cells apart."""
        return self.label, self.length, self.seed

    @property
    def name(self) -> str:
        """A name for its folder: readable, and unlike every other label's."""
        plain = re.sub(r"[^A-Za-z0-9_.=-]+", "-", self.label).strip("-")
        if plain != self.label:
            plain = f"{plain[:60]}-{sha256(self.label.encode()).hexdigest()[:6]}"
        return f"{plain}-{self.length}-{self.seed}"


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What is compared; dense attention, or another base, is always one of the contenders."""

    contenders: dict[str, Experiment]
    seeds: tuple[int, ...] = (0,)
    lengths: tuple[int, ...] = ()  # none: the task's own
    plugins: tuple[str, ...] = ()  # modules that register further mixers and tasks
    target: float | None = None  # of the time to accuracy; None: what dense attention reached
    span_samples: int = 128  # sequences from which the required attention span is taken; 0: none
    base: str | None = None  # the label all others are held against; None: dense attention

    def __post_init__(self) -> None:
        if self.base is None and not any(_is_dense(one) for one in self.contenders.values()):
            raise WeftError("a grid has dense attention in it; add the mixer 'full'")
        if self.base is not None and self.base not in self.contenders:
            raise WeftError(f"the base {self.base!r} is one of the contenders, and is not there")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise WeftError(f"seeds are one or more, all different; got {self.seeds}")

    def cells(self) -> list[Cell]:
        """All cells, seed by seed, so that a grid that is stopped early is a smaller grid."""
        return [
            self._cell(label, length, seed)
            for seed in self.seeds
            for length in self.lengths or (None,)
            for label in self.contenders
        ]

    def _cell(self, label: str, length: int | None, seed: int) -> Cell:
        one = self.contenders[label]
        task = sized(one.task, length)
        own = dataclasses.replace(
            one, task=str(task), training=dataclasses.replace(one.training, seed=seed)
        )
        dense = _is_dense(one) if self.base is None else label == self.base
        return Cell(label=label, length=task.length, seed=seed, experiment=own, dense=dense)

    @property
    def dense(self) -> str:
        """The label of the baseline."""
        if self.base is not None:
            return self.base
        return next(label for label, one in self.contenders.items() if _is_dense(one))

    def dense_like(self, cell: Cell) -> Experiment:
        """The baseline on the task of a cell."""
        return dataclasses.replace(self.contenders[self.dense], task=cell.experiment.task)

    def tables(self) -> dict[str, Any]:
        """As JSON values."""
        return ({} if self.base is None else {"base": self.base}) | {
            "format": FORMAT,
            "contenders": {label: one.tables() for label, one in self.contenders.items()},
            "seeds": list(self.seeds),
            "lengths": list(self.lengths),
            "plugins": list(self.plugins),
            "target": self.target,
            "span_samples": self.span_samples,
        }


def contenders(recipe: Recipe, mixers: str) -> dict[str, Experiment]:
    """The mechanisms of `full, longformer(window=65)` by label.

    A label is the mechanism's name, or the whole spec where a name comes twice. A name without
    settings means what the recipe says about it, if it does.
    """
    parsed = list(dict.fromkeys(MIXERS.parse_list(mixers)))
    names = [config.name for config in parsed]
    found = {}
    for config in parsed:
        label = config.name if names.count(config.name) == 1 else str(config)
        own = dataclasses.replace(recipe.experiment, mixer=str(config))
        found[label] = recipe.mixers.get(label, own) if str(config) == label else own
    return found


def with_dense(
    found: dict[str, Experiment], base: Experiment, *, unfused: bool = False
) -> dict[str, Experiment]:
    """Dense attention in front, added where it is missing; and its unfused form, on request."""
    dense = {label: one for label, one in found.items() if _is_dense(one)}
    if not dense:
        dense = {DENSE: dataclasses.replace(base, mixer=DENSE)}
    if unfused:
        dense[UNFUSED] = dataclasses.replace(next(iter(dense.values())), unfused=True)
    return dense | found


def sized(spec: str, length: int | None, tasks: Registry = TASKS) -> Any:
    """The task of a spec, at another length where one is given."""
    task = tasks.parse(spec)
    if length is None or task.length == length:
        return task
    if hasattr(task, "at_length"):
        return task.at_length(length)
    if "length" not in {field.name for field in dataclasses.fields(task) if field.init}:
        raise WeftError(
            f"the task {task.name} has no setting 'length' to change to {length}; "
            "give its settings in the spec, and no lengths"
        )
    return dataclasses.replace(task, length=length)


def write_grid(folder: Path, grid: Grid, command: str = "") -> None:
    """Keep the grid in its folder; another grid in the same folder is refused."""
    path, wanted = folder / "grid.json", grid.tables()
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        differences = list(_differences({**wanted, "command": None}, {**found, "command": None}))
        if differences:
            raise WeftError(
                f"{folder} holds a comparison with other settings; give another folder, or the "
                f"same settings. The differences: {'; '.join(differences[:8])}"
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    experiments = list(grid.contenders.values())
    about = {"command": command, "task": experiments[0].task}
    write_json(path, {**about, **wanted})


def read_grid(folder: Path) -> Grid:
    """The grid of a folder."""
    path = folder / "grid.json"
    if not path.is_file():
        raise WeftError(f"{folder} holds no comparison: it has no grid.json")
    found = json.loads(path.read_text(encoding="utf-8"))
    if found.get("format") != FORMAT:
        raise WeftError(f"{path} is not in format {FORMAT}, which this version reads")
    return Grid(
        contenders={label: experiment(one) for label, one in found["contenders"].items()},
        seeds=tuple(found["seeds"]),
        lengths=tuple(found["lengths"]),
        plugins=tuple(found["plugins"]),
        target=found["target"],
        span_samples=found["span_samples"],
        base=found.get("base"),
    )


def _is_dense(one: Experiment) -> bool:
    return one.mixer == DENSE and not one.unfused


def _differences(new: Any, old: Any, where: str = "") -> Any:
    """What differs between two trees of plain values, as text."""
    if isinstance(new, dict) and isinstance(old, dict):
        for key in {**old, **new}:
            at = f"{where}.{key}" if where else key
            if key == "task" and not where:
                continue  # a copy for readers; each contender has its own
            if key in new and key in old:
                yield from _differences(new[key], old[key], at)
            else:
                yield f"{at}: {old.get(key, 'absent')} there, {new.get(key, 'absent')} now"
    elif new != old:
        yield f"{where}: {old} there, {new} now"


def numbers(text: str, what: str) -> tuple[int, ...]:
    """`256,512` as numbers, in order and without repetition."""
    try:
        return tuple(dict.fromkeys(int(part.replace("_", "")) for part in text.split(",")))
    except ValueError as cause:
        raise WeftError(
            f"{what} are whole numbers separated by commas, such as 256,512; got {text!r}"
        ) from cause


def plugged(modules: Sequence[str]) -> None:
    """Import modules that register mixers and tasks of the user's own."""
    import importlib
    import sys

    sys.path[:0] = [] if "" in sys.path else [""]
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as cause:
            raise WeftError(
                f"cannot import the plugin {module!r}: {cause}; a plugin is a module on the path "
                "of Python or in the current folder"
            ) from cause
