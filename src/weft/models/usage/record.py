"""What travels with the weights of a trained model: `usage.json`, and its tokenizer's own file.

    kind        what is predicted: a class, a class for a pair, a number, the next token
    labels      the classes in the order of the head's outputs, as the training data wrote them
    tokens      how text becomes ids: "bytes", "tokenizer.json", or "none": the task is not text
    columns     the names that the texts had in the training data
    events      of tasks made of events: their columns and how each is encoded
    pictures    of tasks made of pictures: their size, form and palette
    modalities  of tasks of several kinds of columns: which, and how each is read
    settings    of the experiment, as a settings file has them

A folder of weft 0.1.0 has no such file: its model loads, and predicts from ids alone.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft import __version__
from weft.errors import WeftError
from weft.files import read_json, read_text

USAGE, TOKENIZER = "usage.json", "tokenizer.json"
FORMAT = 1
Label = str | int | float | bool


@dataclass(frozen=True, kw_only=True)
class Usage:
    """All that is needed to use a trained model where its training data is not."""

    kind: str  # "classify", "match", "regress", "language", or another objective
    task: str = ""  # its name
    data: str = ""  # which data it was trained on, in words
    metric: str = ""
    labels: tuple[Label, ...] = ()
    tokens: str = "none"
    offset: float = 0.0  # a regression's answer is offset + scale · output
    scale: float = 1.0
    length: int = 0  # longer texts are cut
    columns: dict[str, str] = field(default_factory=dict)  # text, second, global_text: where used
    global_after: str = ""  # the last character of each is global
    marks_global: bool = False  # whether the model takes `is_global`
    marks: dict[str, str] = field(default_factory=dict)  # rules by mark (mark_rules.py)
    events: dict[str, Any] = field(default_factory=dict)  # weft.events.encoders reads it
    pictures: dict[str, Any] = field(default_factory=dict)  # weft.pictures.coding reads it
    modalities: dict[str, Any] = field(default_factory=dict)  # models.usage.multimodal reads it
    settings: dict[str, Any] = field(default_factory=dict)
    weft: str = __version__  # the version that trained it
    tokenizer: str | None = None  # the text of tokenizer.json

    @property
    def is_pair(self) -> bool:
        """Whether two texts are read."""
        return self.kind == "match"


def write_usage(usage: Usage, folder: Path) -> None:
    """Into the folder of a saved model."""
    table = {"format": FORMAT, **dataclasses.asdict(usage)}
    if (tokenizer := table.pop("tokenizer")) is not None:
        (folder / TOKENIZER).write_text(tokenizer, encoding="utf-8")
    text = json.dumps(table, indent=2, ensure_ascii=False)
    (folder / USAGE).write_text(text + "\n", encoding="utf-8")


def read_usage(folder: Path) -> Usage | None:
    """What `write_usage` wrote; None where there is nothing."""
    path = folder / USAGE
    if not path.is_file():
        return None
    try:
        table = read_json(path)
    except WeftError as cause:
        raise WeftError(f"{cause}; {_WAY_OUT}") from cause
    if not isinstance(table, dict) or table.pop("format", None) != FORMAT:
        raise WeftError(f"{path} is not of format {FORMAT}, which this version reads; {_WAY_OUT}")
    tokenizer = folder / TOKENIZER
    if table.get("tokens") == TOKENIZER:
        if not tokenizer.is_file():
            raise WeftError(f"{folder} lacks {TOKENIZER}, which {USAGE} names; {_WAY_OUT}")
        table["tokenizer"] = read_text(tokenizer)
    return _usage(table, path)


_WAY_OUT = f"copy the whole folder again, or remove {USAGE}: then the model takes ids alone"
_KINDS = {"str": str, "int": int, "bool": bool, "float": (int, float), "str | None": str}


def _usage(table: dict[str, Any], path: Path) -> Usage:
    known = {each.name: str(each.type) for each in dataclasses.fields(Usage)}
    for key, value in table.items():
        if key not in known:
            raise WeftError(f"{path} has no setting {key!r}; {_WAY_OUT}")
        hint = known[key]
        kind = list if hint.startswith("tuple") else _KINDS.get(hint, dict)
        if not isinstance(value, kind):
            raise WeftError(f"{path}: {key} is a {hint}; got {value!r}. {_WAY_OUT}")
    if "kind" not in table:
        raise WeftError(f"{path} does not say what the model predicts (kind); {_WAY_OUT}")
    return Usage(**{**table, "labels": tuple(table.get("labels", ()))})


def check_labels(usage: Usage, config: Any, folder: Path) -> None:
    """Refuse class names that do not fit the head."""
    classes = getattr(config, "classes", None)
    if not usage.labels or classes is None:
        return
    if len(usage.labels) != classes:
        raise WeftError(
            f"{folder / USAGE}: labels names one class for each output of the head; got "
            f"{len(usage.labels)} names ({', '.join(map(repr, usage.labels[:5]))}) for "
            f"model.classes = {classes} in config.json: {_WAY_OUT}"
        )
    if len(set(map(repr, usage.labels))) != classes:
        raise WeftError(f"{folder / USAGE}: labels are distinct; got {list(usage.labels)}")
