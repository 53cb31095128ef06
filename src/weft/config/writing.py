"""From configs to plain values and to spec strings."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

from weft import spec
from weft.config.settings import Table, family_of, given, name_of, settings_of, taken_over

_PLAIN = (str, int, float, bool, types.NoneType)


def write(value: Any, *, brief: bool = False) -> Any:
    """Plain values, as JSON has them; brief: only what differs from the defaults."""
    return _written(value, None, brief)


def _written(value: Any, base: Any, brief: bool) -> Any:
    if isinstance(value, tuple | list):
        return [_written(inner, None, brief) for inner in value]
    if isinstance(value, dict):
        return {key: _written(inner, None, brief) for key, inner in value.items()}
    if not dataclasses.is_dataclass(value):
        return value if isinstance(value, _PLAIN) else str(value)
    cls, named = type(value), family_of(type(value)) is not None
    found: Table = {"name": name_of(cls)} if named else {}
    under = {k: s.default for k, s in settings_of(cls).items()}
    under |= taken_over(cls, base, named=named)
    fields = given(value) if brief else {f.name: getattr(value, f.name) for f in _fields(value)}
    for name, inner in fields.items():
        if not (brief and inner == under[name]):
            short = brief and name not in getattr(cls, "derives", ())
            found[name] = _written(inner, under[name] if short else None, short)
    return found


def _fields(value: Any) -> list[Any]:
    return [field for field in dataclasses.fields(value) if field.init]


def spec_of(value: Any) -> str:
    """A config as a spec string: its name, the settings that differ, and mechanisms inside."""
    known = settings_of(type(value))
    said = {
        key: own
        for key, own in given(value).items()
        if own != known[key].default or family_of(type(own)) is not None
    }
    return spec.write(name_of(type(value)), said)
