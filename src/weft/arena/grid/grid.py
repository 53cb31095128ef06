"""A grid: mechanisms × seeds × lengths on one task, as plain values in `grid.json`."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from weft.arena.experiment.settings import Experiment, Recipe, experiment, with_mixer
from weft.config import config, read, write
from weft.errors import WeftError
from weft.files import read_object, write_json
from weft.mixers import MIXERS
from weft.plugins import module_names, required

FORMAT = 2  # 1: weft 0.1
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
        """What distinguishes cells."""
        return self.label, self.length, self.seed

    @property
    def name(self) -> str:
        """A name for its folder: readable, and unlike every other label's."""
        plain = re.sub(r"[^A-Za-z0-9_.=-]+", "-", self.label).strip("-")
        if plain != self.label:
            plain = f"{plain[:60]}-{sha256(self.label.encode()).hexdigest()[:6]}"
        return f"{plain}-{self.length}-{self.seed}"


@config
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
            raise WeftError(f"the base {self.base!r} has to be one of the contenders")
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
            one, task=task, training=dataclasses.replace(one.training, seed=seed)
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


def contenders(recipe: Recipe, mixers: str) -> dict[str, Experiment]:
    """The mechanisms of `full, longformer(window=65)` by label.

    A label is the mechanism's name, or the whole spec where a name comes twice. A name without
    settings means what the recipe says about it, if it does.
    """
    parsed = list(dict.fromkeys(MIXERS.parse_list(mixers)))
    names = [mixer.name for mixer in parsed]
    found = {}
    for mixer in parsed:
        label = mixer.name if names.count(mixer.name) == 1 else str(mixer)
        own = with_mixer(recipe.experiment, mixer)
        found[label] = recipe.mixers.get(label, own) if str(mixer) == label else own
    return found


def with_dense(
    found: dict[str, Experiment], base: Experiment, *, unfused: bool = False
) -> dict[str, Experiment]:
    """Dense attention in front, added where it is missing; and its unfused form, on request."""
    dense = {label: one for label, one in found.items() if _is_dense(one)}
    if not dense:
        dense = {DENSE: with_mixer(base, DENSE)}
    if unfused:
        dense[UNFUSED] = dataclasses.replace(next(iter(dense.values())), unfused=True)
    return dense | found


def sized(task: Any, length: int | None) -> Any:
    """The task, at another length where one is given."""
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
    path, wanted = folder / "grid.json", write(grid)
    if path.exists():
        differences = list(_differences(wanted, write(read_grid(folder))))
        if differences:
            raise WeftError(
                f"{folder} holds a comparison with other settings; give another folder, or the "
                f"same settings. The differences: {'; '.join(differences[:8])}"
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    task = next(iter(grid.contenders.values())).task
    about = {"format": FORMAT, "command": command, "task": str(task)}
    write_json(path, {**about, **write(grid, brief=True)})


def read_grid(folder: Path) -> Grid:
    """The grid of a folder."""
    path = folder / "grid.json"
    if not path.is_file():
        raise WeftError(f"{folder} holds no comparison: it has no grid.json")
    found = read_object(path, "contenders")
    check_format(path, found, FORMAT)
    required(module_names(found.get("plugins", []), str(path)), f"the comparison in {folder}")
    if not isinstance(found["contenders"], dict):
        raise WeftError(f"{path}: contenders is a table; got {found['contenders']!r:.80}")
    given = {key: found[key] for key in found if key not in ("format", "command", "task")}
    given["contenders"] = {label: experiment(one) for label, one in found["contenders"].items()}
    return read(Grid, given, str(path))


def check_format(path: Path, found: Any, newest: int) -> None:
    """Refuse a file that a later version wrote, or another program."""
    number = found.get("format") if isinstance(found, dict) else None
    if number not in range(1, newest + 1):
        raise WeftError(f"{path} is in format {number!r}; this version reads 1 to {newest}")


def _is_dense(one: Experiment) -> bool:
    return one.mixer == DENSE and not one.unfused


def _differences(new: Any, old: Any, where: str = "") -> Any:
    """What differs between two trees of plain values, as text."""
    if isinstance(new, dict) and isinstance(old, dict):
        for key in {**old, **new}:
            at = f"{where}.{key}" if where else key
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
