"""From the weights of a published checkpoint to those of a weft model, by a table of names.

    {"stack.sublayers.{s}.body.project.to_q": "encoder.layer.{i}.attention.self.query", ...}

A row names a parameter, or all parameters under a module: `.weight` and `.bias` follow by
themselves. What is more than a renaming is a `Take`: a slice, a transpose, a sum. `a|b` are two
names of the same weight, of which a file has one.

Every weight is taken exactly once: one that is missing, left over, taken in part or twice, or of
another shape than the config says is an error that names it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from weft.errors import WeftError

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Take:
    """A weft tensor from one or several tensors of a checkpoint."""

    names: tuple[str, ...]
    make: Callable[..., Tensor]
    partly: bool = False  # the rest of the tensor has no place in a weft model


Row = str | Take
Rows = dict[str, Row]


@dataclass(frozen=True)
class Names:
    """The whole table of one checkpoint."""

    rows: Rows
    prefix: str = ""  # in front of names in files of models with a head; left off everywhere
    # Copies of other weights in some files: {copy: original}; they must be equal.
    copies: Mapping[str, str] = field(default_factory=dict)
    # Patterns of weights that a weft model has no place for, and why.
    left_out: Mapping[str, str] = field(default_factory=dict)

    def plain(self, name: str) -> str:
        """The name as rows have it: without the prefix, norms by their present names."""
        name = name.removeprefix(self.prefix)
        for old, new in (
            ("LayerNorm.gamma", "LayerNorm.weight"),
            ("LayerNorm.beta", "LayerNorm.bias"),
        ):
            if name.endswith(old):
                name = name.removesuffix(old) + new
        return name


def under(prefix: str, rows: Mapping[str, Row]) -> Rows:
    """The rows of a part of a model, as it lies in the whole."""
    return {f"{prefix}{name}": row for name, row in rows.items()}


def within(prefix: str, rows: Mapping[str, Row]) -> Rows:
    """The same for the names in the checkpoint."""
    return {name: _named(row, lambda old: f"{prefix}{old}") for name, row in rows.items()}


def for_layers(layers: Iterable[int], letters: str, rows: Rows, first: int = 0) -> Rows:
    """A row for each layer: {i} is its number, {s}, {c} and {f} the places of its sublayers.

    `letters` is a layer of the stack's order, "sf" or "scf"; `first` the place of the first layer.
    """
    found: Rows = {}
    for place, i in enumerate(layers):
        at = {letter: first + place * len(letters) + k for k, letter in enumerate(letters)}
        found |= {
            name.format(i=i, **at): _named(row, lambda old, i=i: old.format(i=i))
            for name, row in rows.items()
        }
    return found


def _named(row: Row, rename: Callable[[str], str]) -> Row:
    def each(name: str) -> str:
        return "|".join(rename(one) for one in name.split("|"))

    if isinstance(row, str):
        return each(row)
    return dataclasses.replace(row, names=tuple(each(name) for name in row.names))


def part(name: str, index: int, count: int, *, turned: bool = False) -> Take:
    """One of several matrices that lie in one; `turned`: with inputs as rows, as a Conv1D."""

    def make(whole: Tensor) -> Tensor:
        one = whole.chunk(count, dim=-1 if turned else 0)[index]
        return one.t() if turned and one.dim() == 2 else one

    return Take((name,), make)


def turned(name: str) -> Take:
    """A matrix (inputs, outputs) as (outputs, inputs); biases stay."""
    return Take((name,), lambda whole: whole.t() if whole.dim() == 2 else whole)


def rows_from(name: str, start: int) -> Take:
    """The rows of a table from `start` on: those before it belong to padding."""
    return Take((name,), lambda table: table[start:], partly=True)


def plus_one(name: str) -> Take:
    """Gains that are stored as their distance from 1."""
    return Take((name,), lambda gain: gain + 1)


def converted(names: Names, found: Weights, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that a weft model wants, from those found in a checkpoint."""
    here = {names.plain(name): name for name in found}
    if len(here) < len(found):
        twice = [name for name, times in Counter(map(names.plain, found)).items() if times > 1]
        raise WeftError(f"the checkpoint has weights twice, with prefix and without: {_few(twice)}")
    taken: Counter[str] = Counter()
    whole: set[str] = set()
    made: dict[str, Tensor] = {}
    missing: list[str] = []
    for name, like in wanted.items():
        row = _row_of(name, names.rows)
        sources = [_chosen(source, here) for source in row.names]
        lacking = [source for source in sources if source not in here]
        missing += lacking
        if lacking:
            continue
        tensor = row.make(*(found[here[source]] for source in sources))
        if tensor.shape != like.shape:
            raise WeftError(
                f"{' and '.join(sources)} make {name} {tuple(tensor.shape)}, but the config says "
                f"{tuple(like.shape)}: config and weights belong to different models"
            )
        made[name] = tensor
        for source in sources:  # a row of several tensors takes each of them whole
            alone = len(sources) == 1
            taken[source] += tensor.numel() if alone else found[here[source]].numel()
        whole |= {source for source in sources if row.partly}
    _check_rest(names, found, here, taken, missing)
    for source, count in taken.items():
        size = found[here[source]].numel()
        if count != size and source not in whole:
            raise WeftError(f"{source} has {size} numbers, of which {count} were taken")
    return made


def _row_of(name: str, rows: Rows) -> Take:
    """The row of a parameter; one of a module is completed by what follows in the name."""
    head, rest = name, ""
    while head:
        if head in rows:
            row = rows[head]
            row = Take((row,), lambda tensor: tensor) if isinstance(row, str) else row
            renamed = _named(row, lambda old, rest=rest: f"{old}{rest}")
            assert isinstance(renamed, Take)
            return renamed
        head, dot, last = head.rpartition(".")
        rest = f"{dot}{last}{rest}"
    raise AssertionError(f"no row says where {name} comes from")


def _chosen(source: str, here: Mapping[str, str]) -> str:
    options = source.split("|")
    return next((option for option in options if option in here), options[0])


def _check_rest(
    names: Names,
    found: Weights,
    here: Mapping[str, str],
    taken: Mapping[str, int],
    missing: list[str],
) -> None:
    """Refuse missing weights, and weights that nothing takes."""
    extra = []
    for name, full in here.items():
        if name in taken or any(fnmatchcase(name, pattern) for pattern in names.left_out):
            continue
        original = names.copies.get(name)
        if original is None or original not in here:
            extra.append(full)
        elif not _same(found[full], found[here[original]]):
            raise WeftError(
                f"{full} should be the same as {here[original]}, since the config ties them, and "
                "is not; set tie_word_embeddings to false in config.json if they are two weights"
            )
    if missing or extra:
        raise WeftError(
            "the checkpoint does not fit its config: "
            f"missing {_few(sorted(set(missing)))}, unknown {_few(sorted(extra))}"
            + ("" if extra else "; a body without its head is read by head='Model' (--head Model)")
        )


def _same(one: Tensor, two: Tensor) -> bool:
    if one.is_meta or two.is_meta:
        return one.shape == two.shape
    return one is two or (one.shape == two.shape and torch.equal(one, two))


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:5]) or "none"
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown
