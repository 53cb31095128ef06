"""Registries of configs that build a module, with the help that a first user needs.

Longformer(window=257).build(Frame(dim=512, heads=8))    what a mechanism defines
Longformer(window=257).build(dim=512, heads=8)           the same: registering adds it
Longformer(window=257)(x)                                explained, since a config is not a module
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from weft.errors import WeftError
from weft.registry import Config, Registry, suggest


class ModuleRegistry(Registry):
    """Configs whose `build` gives an nn.Module; calling the config itself says how to build it."""

    example = "build()"

    def register(self, name: str) -> Callable[[Config], Config]:
        """As every registry does, and explain a config that is called like a module."""
        file, example = super().register(name), self.example

        def explain(config: Any, *args: Any, **kwargs: Any) -> NoReturn:
            raise WeftError(
                f"{type(config).__name__} holds settings and is not a module; "
                f"build it first: module = {type(config).__name__}(...).{example}, then module(x)"
            )

        def add(config: Config) -> Config:
            setattr(config, "__call__", explain)  # noqa: B010  # a class is typed otherwise
            return file(config)

        return add


class MixerRegistry(ModuleRegistry):
    """Mixers: `build` takes a frame or, as keywords, the fields of one."""

    example = "build(dim=512, heads=8)"

    def __init__(self, frame: type[Any]) -> None:
        super().__init__("mixer")
        self.frame = frame

    def register(self, name: str) -> Callable[[Config], Config]:
        """As every registry does, and let `build` take the fields of a frame."""
        file = super().register(name)

        def add(config: Config) -> Config:
            if "build" in vars(config):
                setattr(config, "build", self._with_fields(config.build))  # noqa: B010
            return file(config)

        return add

    def _with_fields(self, build: Callable[..., Any]) -> Callable[..., Any]:
        def build_in(config: Any, frame: Any = None, /, **settings: Any) -> Any:
            if frame is None:
                return build(config, self.framed(config, settings))
            if settings:
                raise WeftError(
                    "build takes a Frame or the fields of one, not both; got a Frame and "
                    f"{', '.join(settings)}: use dataclasses.replace(frame, ...)"
                )
            if not isinstance(frame, self.frame):
                raise WeftError(
                    f"{config.name} is built in a Frame or from its fields, "
                    f"build(dim=512, heads=8); got {frame!r}"
                )
            return build(config, frame)

        build_in.__doc__ = build.__doc__ or "The layer in this Frame, or from fields of one."
        build_in.__name__, build_in.__qualname__ = build.__name__, build.__qualname__
        build_in.__module__ = build.__module__
        return build_in

    def framed(self, config: Any, settings: Mapping[str, Any]) -> Any:
        """The frame of these fields, for a mixer; what is not a field gets a suggestion."""
        known = [field.name for field in dataclasses.fields(self.frame)]
        for key, value in settings.items():
            if key in known:
                continue
            if key in (field.name for field in dataclasses.fields(config)):
                hint = f"it is a setting of the mechanism: write {config.name}({key}={value!r})"
            else:
                hint = suggest(key, known)
            raise WeftError(f"a layer has no setting {key!r}; {hint}")
        if "dim" not in settings:
            raise WeftError(f"{config.name} needs the width of its tokens; give dim=512, heads=8")
        return self.frame(**settings)
