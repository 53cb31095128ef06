"""Names to configs. One registry per family; a miss suggests the near ones.

A config is a frozen dataclass: the only home of its defaults. Registering gives it a name, and the
three forms of one thing become interchangeable: `Longformer(window=512)`, the spec string
`longformer(window=512)` and the dict `{"name": "longformer", "window": 512}`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Any, TypeVar

from weft import spec
from weft.errors import WeftError

Config = TypeVar("Config", bound=type[Any])


class Registry:
    """The named configs of one family, e.g. all token mixers."""

    def __init__(self, family: str) -> None:
        self.family = family
        self._entries: dict[str, type[Any]] = {}

    def register(self, name: str) -> Callable[[Config], Config]:
        """Class decorator: file the config under `name` and give it `.name`, `str` and dicts."""

        def add(config: Config) -> Config:
            if name in self._entries:
                raise WeftError(f"{self.family} {name!r} is registered twice; names are unique")
            config.name = name
            if "__str__" not in vars(config):
                setattr(config, "__str__", _spec_string)  # noqa: B010  # a class is typed otherwise
            self._entries[name] = config
            return config

        return add

    def __getitem__(self, name: str) -> type[Any]:
        if name not in self._entries:
            raise WeftError(f"no {self.family} named {name!r}; {suggest(name, self._entries)}")
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def make(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Build a config by name; unknown settings raise and suggest the near ones."""
        config = self[name]
        if not dataclasses.is_dataclass(config):
            if kwargs:
                raise WeftError(f"{name} takes its parts by place, not by name; got {kwargs}")
            return config(*args)
        fields = [field for field in dataclasses.fields(config) if field.init]
        known = [field.name for field in fields]
        for key in kwargs:
            if key not in known:
                raise WeftError(f"{name} has no setting {key!r}; {suggest(key, known)}")
        in_order = [field.name for field in fields if not field.kw_only]
        if len(args) > len(in_order):
            raise WeftError(
                f"{name} takes {len(in_order)} settings by place, the rest by name: "
                f"{', '.join(known) or 'none'}; got {args}"
            )
        given = {*in_order[: len(args)], *kwargs}
        missing = [field.name for field in fields if _needed(field) and field.name not in given]
        if missing:
            raise WeftError(f"{name} needs {', '.join(missing)}: write {name}({missing[0]}=...)")
        return config(*args, **kwargs)

    def parse(self, text: str) -> Any:
        """The config that a spec string such as `longformer(window=512)` describes."""
        return spec.parse(text, lambda name, args, kwargs: self.make(name, *args, **kwargs))

    def parse_list(self, text: str) -> list[Any]:
        """The configs that `full, longformer(window=512)` describes."""
        return spec.parse_list(text, lambda name, args, kwargs: self.make(name, *args, **kwargs))

    def from_dict(self, settings: dict[str, Any]) -> Any:
        """The config that `to_dict` wrote."""
        if "name" not in settings:
            raise WeftError(f"a {self.family} needs a 'name'; got {settings}")
        given = {key: _frozen(value, self) for key, value in settings.items() if key != "name"}
        return self.make(settings["name"], **given)


def to_dict(config: Any) -> dict[str, Any]:
    """A config as plain JSON values; `Registry.from_dict` reads it back."""
    fields = {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    return {"name": config.name, **fields}


def _needed(field: Any) -> bool:
    return field.default is field.default_factory is dataclasses.MISSING


def suggest(name: str, known: Any) -> str:
    """The way out of an unknown name: the near ones, or all."""
    near = get_close_matches(name, list(known), n=3)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"known: {', '.join(sorted(known))}"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value


def _frozen(value: Any, registry: Registry) -> Any:
    if isinstance(value, dict) and "name" in value:
        return registry.from_dict(value)
    return tuple(_frozen(v, registry) for v in value) if isinstance(value, list) else value


def _spec_string(config: Any) -> str:
    changed = {
        f.name: getattr(config, f.name)
        for f in dataclasses.fields(config)
        if f.default is dataclasses.MISSING or getattr(config, f.name) != f.default
    }
    return spec.write(config.name, changed)
