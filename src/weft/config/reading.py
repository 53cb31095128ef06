"""From plain values to configs, as the hints of their settings say."""

from __future__ import annotations

import dataclasses
import types
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args, get_origin

from weft.config.settings import (
    UNIONS,
    ConfigFamily,
    Table,
    bound,
    family_in,
    family_of,
    name_of,
    settings_of,
    taken_over,
)
from weft.config.short_names import placed
from weft.errors import Unsupported, WeftError, suggest
from weft.spec import Call, Join, parse_list

Made = TypeVar("Made")
LARGEST = 2**63  # whole numbers are smaller: torch's sizes and seeds have 64 bits
_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


class Misfit(WeftError):
    """A value is not of the kind that its setting has."""

    def __init__(self, where: str, text: str) -> None:
        super().__init__(text)
        self.where = where


class At(NamedTuple):
    """Where a value is read: its place in messages, whether short names count, and its family."""

    where: str
    short: bool = False
    home: ConfigFamily | None = None  # of the config around it

    def under(self, key: str | int) -> At:
        """A place inside."""
        inside = f"[{key}]" if isinstance(key, int) else f".{key}" if self.where else key
        return self._replace(where=f"{self.where}{inside}")

    def parsed(self, text: str) -> list[Any]:
        """The specs of a text, as trees."""
        try:
            return parse_list(text)
        except WeftError as error:
            raise WeftError(f"{self.where}: {error}" if self.where else str(error)) from error

    def misfit(self, hint: Any, value: Any) -> Misfit:
        """The refusal of a value of another kind."""
        near = ""
        if get_origin(hint) is Literal and isinstance(value, str):
            near = suggest(value, map(str, get_args(hint)))
            near = f"; {near}" if near.startswith("did") else ""
        return Misfit(self.where, f"{self.where} is {_words(hint)}; got {value!r}{near}")


def read(kind: type[Made] | Any, value: Any, where: str = "") -> Made:
    """The config that a table describes, or the value that fits a hint; `where` names its place."""
    return fit(kind, value, At(where or _label(kind)))


def changed(base: Made, table: Any, where: str | None = None) -> Made:
    """The config with the settings of a table in their place; names may be short."""
    cls = type(base)
    return build(cls, table, At(name_of(cls) if where is None else where, short=True), base)


def fit(hint: Any, value: Any, at: At, base: Any = None) -> Any:
    """The value as the hint wants it: tables as configs, lists as tuples, whole numbers as floats.

    Tables are laid over `base`, the present value.
    """
    origin, kinds = get_origin(hint), get_args(hint)
    if origin in UNIONS:
        return _either(hint, kinds, value, at, base)
    if (family := family_in(hint)) is not None:
        return family.read(value, at, base)
    if isinstance(value, Call | Join):
        value = _meant(hint, value, at)
    if origin is Literal:
        fits = any(value == kind and type(value) is type(kind) for kind in kinds)
        return _checked(fits, hint, value, at)
    if origin is tuple:
        return _tuple(hint, kinds, value, at)
    if origin is dict:
        _checked(isinstance(value, dict), hint, value, at)
        return {key: fit(kinds[1], inner, at.under(key)) for key, inner in value.items()}
    if hint is int or hint is float:
        return _number(hint, value, at)
    if hint in (Any, object):
        return _loose(value, at)
    if not isinstance(hint, type):
        return value
    if dataclasses.is_dataclass(hint) and not isinstance(value, hint):
        return _part(hint, value, at, base)
    return _checked(isinstance(value, hint), hint, value, at)


def build(cls: type[Made], table: Any, at: At, base: Any = None, *, named: bool = False) -> Made:
    """A config of this class with the settings of a table, laid over `base`."""
    if not isinstance(table, dict):
        raise at.misfit(cls, table)
    if at.short:
        table = placed(cls, table, at.where, taken_over(cls, base, named=named))
    known, given = settings_of(cls), taken_over(cls, base, named=named)
    later = {}
    for key, value in table.items():
        if key not in known:
            whose = f"{at.where}: {name_of(cls)}" if family_of(cls) else at.where
            raise WeftError(f"{whose} has no setting {key!r}; {suggest(key, known)}")
        if key in getattr(cls, "derives", ()) and isinstance(value, dict) and key not in given:
            later[key] = value  # laid over what the config fills in
        else:
            under = given.get(key, known[key].default)
            given[key] = fit(known[key].hint, value, at.under(key), under)
    if not later:
        return _constructed(cls, given, at)
    try:
        filled: Any = _constructed(cls, given, at)
    except WeftError:  # it cannot fill them in: they are given whole
        filled = None
    for key, value in later.items():
        given[key] = fit(known[key].hint, value, at.under(key), getattr(filled, key, None))
    return _constructed(cls, given, at)


def _constructed(cls: type[Made], given: Table, at: At) -> Made:
    try:
        return cls(**given)
    except WeftError as error:
        if at.where in ("", name_of(cls)):
            raise
        kind = Unsupported if isinstance(error, Unsupported) else WeftError
        raise kind(f"{at.where}: {error}") from error


def _part(cls: type[Any], value: Any, at: At, base: Any) -> Any:
    """A config where the hint names its class."""
    if isinstance(value, Call) and value.name == cls.__name__:
        value = bound(cls, value.args, value.kwargs, at.where)
    family = family_of(cls)
    if family is None or (isinstance(value, dict) and "name" not in value):
        return build(cls, value, at, base if isinstance(base, cls) else None)
    return _checked(isinstance(made := family.read(value, at, base), cls), cls, made, at)


def _number(hint: type[Any], value: Any, at: At) -> Any:
    kind = Integral if hint is int else Real
    _checked(isinstance(value, kind) and not isinstance(value, bool), hint, value, at)
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise WeftError(f"{at.where} is a number of up to 63 bits; got one of {value.bit_length()}")
    # A mechanism keeps a number as it was written: its spec names it in results.
    return value if at.home is not None and isinstance(value, int) else hint(cast(float, value))


def _either(hint: Any, kinds: tuple[Any, ...], value: Any, at: At, base: Any) -> Any:
    """The first of several readings that fits."""
    optional = types.NoneType in kinds
    if value is None and optional:
        return None
    inside: WeftError | None = None
    for kind in kinds:
        try:
            if kind is not types.NoneType:
                return fit(kind, value, at, base)
        except WeftError as error:
            if not (isinstance(error, Misfit) and error.where == at.where):
                inside = error
    if optional and value == "none":
        return None
    raise inside or at.misfit(hint, value)


def _tuple(hint: Any, kinds: tuple[Any, ...], value: Any, at: At) -> tuple[Any, ...]:
    if isinstance(value, str) and kinds and family_in(kinds[0]) is not None:
        specs = at.parsed(value)
        value = specs if len(specs) > 1 else value
    _checked(isinstance(value, list | tuple), hint, value, at)
    if kinds[1:] != (...,):
        _checked(len(kinds) == len(value), hint, value, at)
    else:
        kinds = kinds[:1] * len(value)
    each = enumerate(zip(kinds, value, strict=True))
    return tuple(fit(kind, inner, at.under(i)) for i, (kind, inner) in each)


def _meant(hint: Any, call: Call | Join, at: At) -> Any:
    """The meaning of a name inside a spec: a config of the family around it, or a word."""
    if isinstance(call, Join):
        return call if at.home is None else at.home.read(call, at)
    bare = not (call.args or call.kwargs)
    if bare and (hint is str or get_origin(hint) is Literal):
        return call.name
    mine = isinstance(hint, type) and (dataclasses.is_dataclass(hint) or hint in _WORDS)
    if mine or get_origin(hint) is not None or at.home is None:
        return call
    return at.home.read(call, at)


def _loose(value: Any, at: At) -> Any:
    """A value without a hint: tables with a name are of the family around them."""
    if isinstance(value, list):
        return tuple(_loose(inner, at) for inner in value)
    named = isinstance(value, dict) and "name" in value
    return at.home.read(value, at) if named and at.home is not None else value


def _checked(fits: bool, hint: Any, value: Any, at: At) -> Any:
    if not fits:
        raise at.misfit(hint, value)
    return value


def _label(kind: Any) -> str:
    return name_of(kind) if isinstance(kind, type) else ""


def _words(hint: Any) -> str:
    """A hint in words."""
    origin, kinds = get_origin(hint), get_args(hint)
    if origin in UNIONS:
        return " or ".join(_words(kind) for kind in kinds)
    if (family := family_in(hint)) is not None:
        return f"{_article(family.family)} (a spec, a table or a config)"
    if origin is Literal:
        return f"one of {', '.join(map(repr, kinds))}"
    if origin is tuple:
        return "a list" if kinds[1:] == (...,) else f"a list of {len(kinds)}"
    if origin is dict:
        return "a table"
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return f"{_article(hint.__name__)} (a table of {', '.join(settings_of(hint)) or 'nothing'})"
    plain = _article(getattr(hint, "__name__", str(hint)))
    return "'none'" if hint is types.NoneType else _WORDS.get(hint, plain)


def _article(name: str) -> str:
    return f"an {name}" if name[0] in "AEIOUaeiou" else f"a {name}"
