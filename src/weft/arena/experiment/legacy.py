"""Settings of weft 0.1: one flat [model] table, and the task as `[task] spec`.

    converted(tables)    the same experiment in today's tables

The model was described by 29 settings of its own, from which Frame, Stack, Embedding and head were
made; the rules are kept here. Contenders, modifications and phases changed that flat table, so each
is converted whole.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from weft.arena.tasks import TASKS
from weft.config import Table
from weft.errors import WeftError
from weft.feedforward import FEEDFORWARDS, two_thirds
from weft.feedforward.activations import GATES
from weft.spec import Call, parse_list

_ADDED = ("none", "sinusoidal", "learned")  # positions that were added to the embedding
# Where a setting stands now, and what it was by default.
_PLACES = {
    "dim": ("stack.frame.dim", 128),
    "heads": ("stack.frame.heads", 4),
    "head_dim": ("stack.frame.head_dim", None),
    "attention_dropout": ("stack.frame.dropout", 0.0),
    "bias": ("stack.frame.bias", True),
    "projection": ("stack.frame.projection", "dense"),
    "residual": ("stack.residual", "plain"),
    "depth": ("stack.depth", "plain"),
    "shared": ("stack.shared", 0),
    "norm": ("stack.norm.kind", "layer"),
    "norm_place": ("stack.norm.place", "pre"),
    "dropout": ("stack.dropout", 0.0),
    "recompute": ("stack.recompute", "nothing"),
    "bumps": ("embedding.rbf_levels", None),
    "factor": ("embedding.factor", None),
    "cutoffs": ("embedding.cutoffs", []),
    "registers": ("embedding.registers", 0),
    "pool": ("head.pool", "mean"),
    "head_hidden": ("head.hidden", None),
    "trimmed": ("head.trimmed", False),
    "tied": ("head.tied", True),
}
_OTHERS = {
    "layers": 4,
    "order": None,
    "positions": "sinusoidal",
    "hidden": None,
    "activation": "gelu",
    "feedforward": None,
    "frequent": [],
    "output": "linear",
}
_DEFAULTS = {key: default for key, (_, default) in _PLACES.items()} | _OTHERS


def is_legacy(tables: Any) -> bool:
    """Whether these are settings of weft 0.1, by their task or by words that were theirs alone."""
    if not isinstance(tables, dict):
        return False
    task, model = tables.get("task"), tables.get("model")
    if isinstance(task, dict) and "spec" in task:
        return True
    theirs = ("bumps", "head_hidden", "attention_dropout", "norm_place")
    model = model if isinstance(model, dict) else {}
    norm, order = model.get("norm"), model.get("order")
    return any(key in model for key in theirs) or isinstance(norm, str) or order == "evolved"


def converted(tables: Table) -> Table:
    """The tables of today that mean the same."""
    task = tables.get("task")
    if isinstance(task, dict):
        if set(task) != {"spec"}:
            raise WeftError(f"[task] of weft 0.1 has the setting 'spec' alone; got {task}")
        task = task["spec"]
    base = _Base(tables, task)
    found = {k: v for k, v in tables.items() if k not in ("mixer", "model", "objective")}
    found |= base.model({}) | ({} if task is None else {"task": task})
    if tables.get("objective"):
        found["objective"] = tables["objective"]
    if isinstance(tables.get("phase"), list):
        found["phase"] = [base.phase(entry) for entry in tables["phase"]]
    if isinstance(tables.get("mixers"), dict):
        entries = tables["mixers"].items()
        found["mixers"] = {label: base.contender(label, entry) for label, entry in entries}
    if isinstance(tables.get("modification"), list):
        found["modification"] = [base.modification(entry) for entry in tables["modification"]]
    return found


class _Base:
    """What a file says of all that it describes."""

    def __init__(self, tables: Table, task: Any) -> None:
        self.flat = tables.get("model", {})
        if not isinstance(self.flat, dict):
            raise WeftError(f"model is a table; got {self.flat!r}")
        self.mixer = tables.get("mixer", "full")
        self.causal = getattr(TASKS.kind(task), "kind", None) == "language"

    def model(self, change: Any, mixer: Any = None) -> Table:
        """Mixer and model, whole, with a change of the flat table."""
        if not isinstance(change, dict):
            raise WeftError(f"model is a table; got {change!r}")
        model = _model({**self.flat, **change}, mixer or self.mixer, self.causal)
        return {"mixer": model["trunk"]["stack"].pop("mixer"), "model": model}

    def contender(self, label: str, entry: Any) -> Any:
        entry = {"mixer": entry} if isinstance(entry, str) else entry
        return self.change({"mixer": label, **entry}) if isinstance(entry, dict) else entry

    def modification(self, entry: Any) -> Any:
        """`said` keeps the words of the file."""
        if not isinstance(entry, dict):
            return entry
        said = {key: entry[key] for key in ("mixer", "model", "training") if key in entry}
        return {**self.change(entry), "said": said} if said else entry

    def change(self, entry: Table) -> Table:
        return {**entry, **self.model(entry.get("model", {}), entry.get("mixer"))}

    def phase(self, entry: Any) -> Any:
        """A phase changes the model; its mixer is a change of its own."""
        if not isinstance(entry, dict) or "model" not in entry:
            return entry
        return {**entry, "model": self.model(entry["model"])["model"]}


def _model(flat: Table, mixer: Any, causal: bool) -> Table:
    old = {**_DEFAULTS, **flat}
    found: Table = {key: value for key, value in flat.items() if key not in _DEFAULTS}
    trunk: Table = {"name": "encoder"}
    for key, (place, _) in _PLACES.items():
        _put(found if place.startswith("head.") else trunk, place, old[key])
    inside = old["positions"] not in _ADDED
    _put(trunk, "embedding.positions", "none" if inside else old["positions"])
    _put(trunk, "embedding.frequent", old["frequent"] if old["cutoffs"] else [])
    _put(trunk, "stack.frame.positions", old["positions"] if inside else None)
    _put(found, "head.output", _output(old["output"], old["frequent"]))
    trunk["stack"] |= _layers(old, mixer, causal)
    return {**found, "trunk": trunk}


def _put(table: Table, place: str, value: Any) -> None:
    *way, last = place.split(".")
    for step in way:
        table = table.setdefault(step, {})
    table[last] = value


def _output(text: Any, frequent: Any) -> Any:
    """Clusters of an output knew the frequent tokens of the model."""
    call = parse_list(text)[0] if isinstance(text, str) else None
    if not isinstance(call, Call) or call.name != "adaptive_softmax" or "frequent" in call.kwargs:
        return text
    return {"name": call.name, **call.kwargs, "frequent": frequent}


def _layers(old: Table, mixer: Any, causal: bool) -> Table:
    """Order, mixer and feed-forwards of the stack; "evolved" made a cell of every two layers."""
    layers, heads = _whole(old, "layers"), _whole(old, "heads")
    if old["order"] != "evolved":
        order = old["order"] or "sf" * layers
        return {"order": order, "mixer": mixer, "feedforward": _feedforwards(old)}
    cells = max(1, layers // 2)
    if causal:
        return {
            "order": "sssf" * cells,
            "mixer": [mixer, "evolved_convolution", mixer],
            "feedforward": "dense(activation='silu')",
            "layer_heads": [2 * heads, heads, heads],
        }
    return {
        "order": "fssf" * cells,
        "mixer": ["evolved_convolution", mixer],
        "feedforward": ["gate", "dense(activation='relu')"],
    }


def _feedforwards(old: Table) -> Any:
    """`hidden` and `activation` of the model were those of its feed-forwards that named none."""
    if old["feedforward"] in (None, "none"):
        wide = _units(old, old["activation"]) / _whole(old, "dim")
        return {"name": "dense", "activation": old["activation"], "expansion": wide}
    if not isinstance(old["feedforward"], str):
        return old["feedforward"]
    found = [_feedforward(old, call) for call in parse_list(old["feedforward"])]
    return found[0] if len(found) == 1 else found


def _feedforward(old: Table, call: Any) -> Any:
    if not isinstance(call, Call):
        return call
    given = {key: _feedforward(old, value) for key, value in call.kwargs.items()}
    known = {field.name for field in dataclasses.fields(FEEDFORWARDS[call.name])}
    own = {"activation": old["activation"]} | given
    if "expansion" not in given:
        own = {"hidden": _units(old, own["activation"])} | own
    return {"name": call.name} | {k: v for k, v in own.items() if k in known or k in given}


def _units(old: Table, activation: Any) -> int:
    wide = 4 * _whole(old, "dim")
    return _whole(old, "hidden") or (two_thirds(wide) if activation in GATES else wide)


def _whole(old: Table, key: str) -> int:
    value = None if old[key] == "none" else old[key]
    if not (isinstance(value, int) or (value is None and key == "hidden")) or value is True:
        raise WeftError(f"model.{key} is a whole number; got {value!r}")
    if value is not None and value < 1:
        raise WeftError(f"{key} is at least 1; got {key}={value}")
    return value or 0
