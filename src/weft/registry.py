"""Names to configs. One registry per family; a miss suggests the near ones.

A config is a frozen dataclass: the only home of its defaults. Registering gives it a name, and the
three forms of one thing become interchangeable: `Longformer(window=512)`, the spec string
`longformer(window=512)` and the table `{"name": "longformer", "window": 512}`. All three are read
by the type hints of its settings (`weft.config`). A setting with the hint `Annotated[Any, MIXERS]`
takes any config of the family.

Parts of installed plug-ins (`plugins.py`) join when a name is not known, or all are listed.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from weft import plugins, spec
from weft.config import At, Misfit, bound, build, checked, family_of, name_of
from weft.errors import WeftError, suggest

__all__ = ["Registry", "suggest"]

Config = TypeVar("Config", bound=type[Any])
_JOINS = {"|": operator.or_, "&": operator.and_}


class Registry:
    """The named configs of one family, e.g. all token mixers."""

    def __init__(self, family: str) -> None:
        self.family = family
        self._entries: dict[str, type[Any]] = {}

    def register(self, name: str) -> Callable[[Config], Config]:
        """Class decorator: file the config under `name` and check its settings by their hints."""

        def add(config: Config) -> Config:
            if name in self._entries and not _again(self._entries[name], config):
                raise WeftError(f"{self.family} {name!r} is registered twice; names are unique")
            config.name = name
            config._registered = (name, self)
            self._entries[name] = checked(config) if _is_config(config) else config
            return config

        return add

    def __getitem__(self, name: str) -> type[Any]:
        if not isinstance(name, str) or name not in self:
            way_out = f"{suggest(str(name), self._entries)}{plugins.broken()}"
            raise WeftError(f"no {self.family} named {name!r}; {way_out}")
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        plugins.load_installed()
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        plugins.load_installed()
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        if name not in self._entries:
            plugins.load_installed()
        return name in self._entries

    def make(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Build a config by name; unknown settings raise and suggest the near ones."""
        return self._called(spec.Call(name, args, kwargs), At("", home=self))

    def parse(self, text: str) -> Any:
        """The config that a spec string such as `longformer(window=512)` describes."""
        return self.read(text, At("", home=self))

    def parse_list(self, text: str) -> list[Any]:
        """The configs that `full, longformer(window=512)` describes."""
        return [self.read(each, At("", home=self)) for each in spec.parse_list(text)]

    def kind(self, value: Any) -> type[Any] | None:
        """The class that a spec string, a table or a config describes, if it can be told."""
        name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
        if isinstance(value, str):
            with suppress(WeftError):  # the text is refused where it is read
                name = getattr(spec.parse(value), "name", None)
        return self._entries[name] if isinstance(name, str) and name in self else None

    def read(self, value: Any, at: At = At(""), base: Any = None) -> Any:  # noqa: B008
        """The config that a spec string, a table or a config describes, laid over `base`."""
        at = at._replace(home=self)
        if isinstance(value, str):
            trees = at.parsed(value)
            if len(trees) > 1:
                text = f"{at.where or 'this'} is one {self.family}; got {len(trees)}: {value!r}"
                raise Misfit(at.where, text)
            value = trees[0]
        if isinstance(value, dict):
            return self._from_table(value, at, base)
        if isinstance(value, spec.Call):
            return self._called(value, at, base)
        if isinstance(value, spec.Join):
            return self._joined(value, at)
        family = family_of(type(value))
        plain = value is None or isinstance(value, bool | int | float | str | list | tuple)
        if plain or (family is not None and family is not self):
            what = f"{at.where} is a {self.family}:" if at.where else f"a {self.family} is"
            forms = "a spec such as `name(setting=1)`, a table or a config"
            way_out = suggest("", self._entries)
            raise Misfit(at.where, f"{what} {forms}; got {value!r}; {way_out}")
        return value

    def _from_table(self, table: dict[str, Any], at: At, base: Any) -> Any:
        named = "name" in table
        if not named and family_of(type(base)) is not self:
            where = f"{at.where}: " if at.where else ""
            raise WeftError(f"{where}a {self.family} needs a 'name'; got {sorted(table)}")
        config = self._named(table["name"], at) if named else type(base)
        rest = {key: value for key, value in table.items() if key != "name"}
        inside = at if at.where else at.under(name_of(config))
        return build(config, rest, inside, base, named=named)

    def _called(self, call: spec.Call, at: At, base: Any = None) -> Any:
        config = self._named(call.name, at)
        label = f"{at.where}: {call.name}" if at.where else call.name
        if not _is_config(config):
            if call.kwargs:
                raise WeftError(f"{label} takes its parts by place, not by name; got {call.kwargs}")
            return config(*(self._operand(part, at) for part in call.args))
        given = bound(config, call.args, call.kwargs, label, complete=False)
        return build(config, given, at if at.where else at.under(call.name), base, named=True)

    def _joined(self, join: spec.Join, at: At) -> Any:
        parts = [self._operand(part, at) for part in join.parts]
        try:
            if join.op == "~":
                return ~parts[0]
            while len(parts) > 1:  # in pairs, so that a long chain costs little more than its parts
                pairs = zip(parts[::2], parts[1::2], strict=False)
                rest = parts[len(parts) & ~1 :]
                parts = [_JOINS[join.op](one, two) for one, two in pairs] + rest
            return parts[0]
        except TypeError as cause:
            raise WeftError(f"{join.op!r} does not apply to these values: {join!r}") from cause

    def _operand(self, part: Any, at: At) -> Any:
        return self.read(part, at) if isinstance(part, spec.Call | spec.Join) else part

    def _named(self, name: Any, at: At) -> type[Any]:
        try:
            return self[name]
        except WeftError as error:
            raise WeftError(f"{at.where}: {error}" if at.where else str(error)) from error


def _again(old: type[Any], new: type[Any]) -> bool:
    """Whether it is the same class of the user's, defined anew: a notebook's cell run again."""
    where = new.__module__, new.__qualname__
    return where == (old.__module__, old.__qualname__) and where[0].partition(".")[0] != "weft"


def _is_config(kind: type[Any]) -> bool:
    return dataclasses.is_dataclass(kind) and "__init__" in vars(kind)
