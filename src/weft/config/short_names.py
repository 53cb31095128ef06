"""Short names: a setting further inside, written by its name alone where it occurs once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from weft.config.settings import Table, family_in, family_of, name_of, settings_of, taken_over
from weft.errors import WeftError, suggest
from weft.spec import Call, parse_list


def placed(cls: type[Any], table: Table, where: str, given: Table) -> Table:
    """The table with its short names at their full places; `given` is already set."""
    known = settings_of(cls)
    found = {key: value for key, value in table.items() if key in known}
    short = [key for key in table if key not in known]
    # What chooses a kind comes first: the others may be settings of that kind.
    for key in sorted(short, key=lambda key: not isinstance(table[key], str | dict | list)):
        path = _place(cls, key, found, where, given)
        inner = found
        for step in path[:-1]:
            inner[step] = _as_table(inner.get(step, {}), f"{where}.{step}", key)
            inner = inner[step]
        inner[key] = _joined(inner.get(key), table[key], f"{where}.{'.'.join(path)}")
    return found


def _place(cls: type[Any], key: str, table: Table, where: str, given: Table) -> tuple[str, ...]:
    """The path of the only setting of this name."""
    every = list(_paths(cls, table, given))
    paths = [path for path in every if path[-1] == key]
    if len(paths) == 1:
        return paths[0]
    if not paths:
        names = {*settings_of(cls), *(path[-1] for path in every)}
        whose = f"{where}: {name_of(cls)}" if family_of(cls) else where
        raise WeftError(f"{whose} has no setting {key!r}; {suggest(key, names)}")
    places = " or ".join(".".join(path) for path in paths)
    raise WeftError(f"{where}.{key} may be one of several settings: write {places}")


def _paths(cls: type[Any], table: Table, given: Table) -> Iterator[tuple[str, ...]]:
    """The places of all settings further inside."""
    for key, setting in settings_of(cls).items():
        if key in getattr(cls, "derives", ()) and key not in given:
            continue
        value, family = table.get(key), family_in(setting.hint)
        under = given.get(key, setting.default)
        named = family.kind(value) if family is not None and value is not None else None
        kind = named or (type(under) if dataclasses.is_dataclass(under) else None)
        if kind is None or isinstance(value, list):
            continue
        own = value if isinstance(value, dict) else {}
        inside = taken_over(kind, under, named=named is not None)
        # A spec string is complete: of what it names, only the parts inside are open.
        names = inside if isinstance(value, str) else settings_of(kind)
        yield from ((key, name) for name in names)
        yield from ((key, *path) for path in _paths(kind, own, inside))


def _joined(one: Any, two: Any, where: str) -> Any:
    """Two tables for the same place as one; of anything else there is one alone."""
    if one is None:
        return two
    if not (isinstance(one, dict) and isinstance(two, dict)):
        raise WeftError(f"{where} is given twice; give it once")
    both = {key: _joined(one.get(key), value, f"{where}.{key}") for key, value in two.items()}
    return {**one, **both}


def _as_table(value: Any, where: str, key: str) -> Table:
    """A copy of a table, or a spec string as one, for a setting `key` inside of it."""
    found = parse_list(value) if isinstance(value, str) else [value]
    if len(found) == 1 and isinstance(found[0], Call):
        return {"name": found[0].name, **found[0].kwargs}
    if isinstance(value, dict):
        return dict(value)
    raise WeftError(f"{where} is {value!r:.80}, which has no settings, and {key!r} is one of it")
