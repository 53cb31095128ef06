"""TOML tables to frozen dataclasses and back; what does not fit is refused with the way out."""

from __future__ import annotations

import dataclasses
import re
import types
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from weft.errors import WeftError
from weft.registry import suggest

Made = TypeVar("Made")
Table = dict[str, Any]


def made(kind: type[Made], table: Any, where: str) -> Made:
    """The dataclass with the settings of a table; `where` names the table in messages.

    TOML has no null: the word "none" stands for it where a setting may be None.
    """
    if not isinstance(table, dict):
        raise WeftError(f"[{where}] is a table of settings; got {table!r}")
    hints = get_type_hints(kind)
    known = {field.name for field in dataclasses.fields(kind) if field.init}
    given = {}
    for key, value in table.items():
        if key not in known:
            raise WeftError(f"[{where}] has no setting {key!r}; {suggest(key, known)}")
        given[key] = fitted(hints[key], value, f"{where}.{key}")
    return kind(**given)


def changed(base: Made, table: Any, where: str) -> Made:
    """The same settings with those of a table in their place."""
    made(type(base), table, where)  # refuses what does not fit
    hints = get_type_hints(type(base))
    given = {key: fitted(hints[key], value, f"{where}.{key}") for key, value in table.items()}
    return dataclasses.replace(base, **given)


def fitted(hint: Any, value: Any, name: str) -> Any:
    """The value as the type wants it: lists as tuples, whole numbers as floats."""
    for kind in get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,):
        found = _as(kind, value)
        if found is not _UNFIT:
            return found
    raise WeftError(f"{name} is {_words(hint)}; got {value!r}")


_UNFIT = object()


def _as(kind: Any, value: Any) -> Any:
    if kind is Any:
        return value
    if kind is type(None):
        return None if value is None or value == "none" else _UNFIT
    if get_origin(kind) is Literal:
        return value if value in get_args(kind) else _UNFIT
    if get_origin(kind) is tuple or kind is tuple:
        return tuple(value) if isinstance(value, list | tuple) else _UNFIT
    if get_origin(kind) is dict:
        return value if isinstance(value, dict) else _UNFIT
    if kind is float:
        whole = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if whole else _UNFIT
    if kind is int and isinstance(value, bool):
        return _UNFIT
    return value if isinstance(value, kind) else _UNFIT


def _words(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_words(kind) for kind in get_args(hint))
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, get_args(hint)))
    if get_origin(hint) is tuple:
        return "a list"
    if get_origin(hint) is dict:
        return "a table"
    plain = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    return "'none'" if hint is type(None) else plain.get(hint, str(hint))


def settings_of(config: Any) -> Table:
    """The settings that differ from their defaults, as plain values."""
    found = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.default is dataclasses.MISSING or value != field.default:
            found[field.name] = list(value) if isinstance(value, tuple) else value
    return found


def to_toml(tables: Table) -> str:
    """TOML of plain values, tables and lists of tables; None is written as "none"."""
    lines = [f"{key} = {_literal(value)}" for key, value in tables.items() if not _nested(value)]
    for key, value in tables.items():
        if isinstance(value, dict):
            lines += ["", f"[{key}]", *(f"{_key(k)} = {_literal(v)}" for k, v in value.items())]
        elif _nested(value):
            for table in value:
                rows = (f"{_key(k)} = {_literal(v)}" for k, v in table.items())
                lines += ["", f"[[{key}]]", *rows]
    return "\n".join(lines).strip() + "\n"


def _nested(value: Any) -> bool:
    tables = isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)
    return isinstance(value, dict) or tables


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _literal(key)


def _literal(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {_literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + "".join(map(_character, value)) + '"'
    return repr(value)


def _character(c: str) -> str:
    if c in '"\\':
        return "\\" + c
    return c if c.isprintable() else f"\\U{ord(c):08x}"
