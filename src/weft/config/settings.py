"""What a config class is built with: its settings, by their hints, and its place in a registry."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from dataclasses import MISSING, InitVar
from functools import cache
from inspect import Parameter, signature
from typing import (
    Annotated,
    Any,
    NamedTuple,
    Protocol,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from weft.errors import WeftError, suggest

Table = dict[str, Any]
UNIONS = (Union, types.UnionType)


class ConfigFamily(Protocol):
    """A registry: what the hint of a setting names."""

    family: str

    def kind(self, value: Any) -> type[Any] | None:
        """The class that a spec string, a table or a config describes, if it can be determined."""

    def read(self, value: Any, at: Any, base: Any = None) -> Any:
        """The config that a spec string, a table or a config describes."""


class ConfigField(NamedTuple):
    """One setting of a class."""

    hint: Any
    default: Any  # MISSING: it has to be given
    by_place: bool


def name_of(cls: type[Any]) -> str:
    """The name under which a class is registered, or else that of the class."""
    return vars(cls).get("_registered", (cls.__name__, None))[0]


def family_of(cls: type[Any]) -> ConfigFamily | None:
    """The registry of a class, if it is in one."""
    return vars(cls).get("_registered", ("", None))[1]


@cache
def settings_of(cls: type[Any]) -> dict[str, ConfigField]:
    """What a config class is built with, in order."""
    try:
        hints = get_type_hints(cls, include_extras=True)
    except NameError:  # a class inside a function, whose hints cannot be found
        hints = {}
    found = {}
    for name, parameter in list(signature(cls.__init__).parameters.items())[1:]:
        field, hint = cls.__dataclass_fields__[name], hints.get(name, Any)
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        by_place = parameter.kind is Parameter.POSITIONAL_OR_KEYWORD
        hint = hint.type if isinstance(hint, InitVar) else hint
        found[name] = ConfigField(hint, default, by_place)
    return found


def bound(cls: type[Any], args: Any, kwargs: Table, label: str, *, complete: bool = True) -> Table:
    """The settings of a call by name; refuses unknown, missing and doubled ones."""
    known = settings_of(cls)
    in_order = [name for name, setting in known.items() if setting.by_place]
    for key in kwargs:
        if key not in known:
            raise WeftError(f"{label} has no setting {key!r}; {suggest(key, known)}")
    if len(args) > len(in_order):
        raise WeftError(
            f"{label} takes {len(in_order)} settings by place, the rest by name: "
            f"{', '.join(known) or 'none'}; got {args}"
        )
    placed = dict(zip(in_order, args, strict=False))
    for key in placed.keys() & kwargs.keys():
        raise WeftError(f"{label} has {key!r} by place and by name; give it once")
    given = placed | kwargs
    missing = [k for k, s in known.items() if s.default is MISSING and k not in given]
    if missing and complete:
        raise WeftError(f"{label} needs {', '.join(missing)}: give {missing[0]}=...")
    return given


def taken_over(cls: type[Any], base: Any, *, named: bool = False) -> Table:
    """What a config of this class takes from the one in its place.

    One of the same class gives all of its settings. Where a kind is named, which may be another, it
    starts anew, but for the parts that both have, as the stack of an encoder that becomes a funnel.
    """
    if type(base) is cls and not named:
        return given(base)
    there = {type(part): part for part in reversed(list(_parts(base)))}
    hints = {key: setting.hint for key, setting in settings_of(cls).items()}
    return {k: there[h] for k, h in hints.items() if isinstance(h, type) and h in there}


def given(value: Any) -> Table:
    """The settings of a config, without those that it filled in itself."""
    names = (f.name for f in dataclasses.fields(value) if f.init)
    return {n: getattr(value, n) for n in names if n not in getattr(value, "_derived", ())}


def _parts(value: Any) -> Iterator[Any]:
    """A config and the configs inside, outer ones first."""
    if dataclasses.is_dataclass(value):
        yield value
        for field in dataclasses.fields(value):
            yield from _parts(getattr(value, field.name))


def family_in(hint: Any) -> ConfigFamily | None:
    """The registry that a hint names; of a union, the one of its first member that has one."""
    if get_origin(hint) in UNIONS:
        return next(filter(None, map(family_in, get_args(hint))), None)
    extra = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((each for each in extra if hasattr(each, "kind")), None)
