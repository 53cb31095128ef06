"""Which modules of Transformers have a twin, by the names of their classes.

A family is a file. It names the classes that it replaces and, for each, what replaces their
methods: `make(module, shared)`, by name, where `shared` is common to the modules of one model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import Unsupported
from weft.interop.hf.twins.lean import (
    EncoderTwin,
    FeedForwardTwin,
    LayerTwin,
    Recomputed,
    ResidualTwin,
    Twin,
)

Make = Callable[[Any, "Pass"], Mapping[str, Twin]]


class Pass:
    """What the twins of one model share during a forward pass."""

    def __init__(self) -> None:
        self.notes = Recomputed()
        self._asked: Tensor | None = None
        self._answer: Any = None

    def once(self, key: Tensor, ask: Callable[[], Any]) -> Any:
        """`ask()`, answered once for all layers that are given the same tensor."""
        if self._asked is not key:
            self._asked, self._answer = key, ask()
        return self._answer

    def __deepcopy__(self, memo: dict[int, Any]) -> Pass:
        return memo.setdefault(id(self), Pass())


@dataclass(frozen=True)
class Family:
    """The twins of one family of models."""

    models: tuple[str, ...]  # how the family is called
    attention: Mapping[str, Make]  # the classes that mark a model of it
    around: Mapping[str, Make] = field(default_factory=dict)  # classes of its layers
    note: str = ""  # what the table says beside


FAMILIES: dict[str, Family] = {}


def register(name: str, family: Family) -> None:
    """Add a family; `name` is its folder in Transformers."""
    assert name not in FAMILIES
    FAMILIES[name] = family


def family_of(part: nn.Module) -> Family | None:
    """The family of a module of Transformers; None: it has none here."""
    where = type(part).__module__.split(".")
    if where[:2] != ["transformers", "models"]:
        return None
    return FAMILIES.get(where[2])


def refuse_maps(wanted: Any) -> None:
    """Attention maps are never formed."""
    if wanted:
        raise Unsupported(
            "weft computes no attention maps; use accelerate(model, undo=True) to see them"
        )


def key_mask(shared: Pass, added: Tensor | None) -> Tensor | None:
    """Which keys are real, (b, n), of a mask (b, 1, any, n); None: all. One wait in a pass."""
    if added is None:
        return None

    def ask() -> Tensor | None:
        last = added[:, 0, -1]  # the last query sees every real key
        real = last if last.dtype == torch.bool else last == 0
        return None if bool(real.all()) else real

    return shared.once(added, ask)


def forward_by(make: Callable[[Any, Pass], Twin]) -> Make:
    """The twin of a module's forward alone."""
    return lambda theirs, shared: {"forward": make(theirs, shared)}


def noted(make: Callable[[Any, Recomputed], Twin]) -> Make:
    """The twin of a forward that needs the notes of the pass alone."""
    return forward_by(lambda theirs, shared: make(theirs, shared.notes))


def bert_like(prefix: str, chunk: str) -> dict[str, Make]:
    """Layers in the manner of BERT; `chunk`: how they call the method of their feedforward."""

    def layer(theirs: Any, shared: Pass) -> Mapping[str, Twin]:
        notes = shared.notes
        return {"forward": LayerTwin(theirs, notes), chunk: FeedForwardTwin(theirs, notes)}

    return {
        f"{prefix}SelfOutput": noted(ResidualTwin),
        f"{prefix}Layer": layer,
        f"{prefix}Encoder": noted(EncoderTwin),
    }
