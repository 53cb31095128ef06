"""Plug-ins: modules of others that register mixers, patterns, tasks and further parts on import.

Three ways to one: an entry point of the group `weft.plugins` in an installed package; the variable
WEFT_PLUGINS, module names separated by commas; `load_plugins` (`--plugin` on the command line). The
first two are loaded when a registry is asked for a name that it does not know, or lists its names,
so that `import weft` stays fast. A broken entry point is a warning, since it may not concern what
the user is doing; a module that the user named raises.

A file never decides what is imported: importing runs code, and a saved model or a run folder may
come from anyone. Files name their modules, and errors repeat them (`way_out`).
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from weft.errors import WeftError
from weft.files import read_object

GROUP = "weft.plugins"
VARIABLE = "WEFT_PLUGINS"
NOTE = "plugins.json"

_named: dict[str, None] = {}  # modules that load_plugins has loaded, in order
_broken: dict[str, str] = {}  # entry points that could not be loaded, and why
_installed = False  # whether entry points and WEFT_PLUGINS have been looked at


def load_plugins(modules: Iterable[str]) -> None:
    """Import modules that register parts of the user's own; the current folder is searched too."""
    for module in modules:
        _import(module, "the plug-in")
        _named[module] = None


def named() -> tuple[str, ...]:
    """The modules that `load_plugins` has loaded: what a process hands on to those it starts."""
    return tuple(_named)


def broken() -> str:
    """The entry points that could not be loaded, as the end of a message; '' where all could."""
    return "".join(f"; {failure}" for failure in _broken.values())


def load_installed() -> None:
    """Load entry points and WEFT_PLUGINS, once; registries call it when a name is missing."""
    global _installed
    if _installed:
        return
    _installed = True  # first: a plug-in may itself list a registry
    try:
        _load_variable()
    except WeftError:
        _installed = False  # so that the next question gets the same answer
        raise
    _load_entry_points()


def _load_variable() -> None:
    for module in filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))):
        _import(module, f"the plug-in of {VARIABLE},")


def _load_entry_points() -> None:
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP):
        try:
            point.load()
        except Exception as cause:
            _broken[point.name] = (
                f"the installed plug-in {point.name!r} ({point.value}) could not be loaded: "
                f"{type(cause).__name__}: {cause}"
            )
            warnings.warn(_broken[point.name], stacklevel=2)


def _import(module: str, what: str) -> None:
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        importlib.import_module(module)
    except Exception as cause:
        # Whatever the module does wrong, the answer is to mend it or to name another.
        raise WeftError(
            f"cannot import {what} {module!r}: {type(cause).__name__}: {cause}; a plug-in is a "
            "module on the path of Python or in the current folder"
        ) from cause


def modules_of(config: Any) -> list[str]:
    """The modules outside weft that define the parts of a config tree."""
    found = {type(part).__module__ for part in _parts(config)}
    return sorted(name for name in found if name.partition(".")[0] not in ("weft", "builtins"))


def _parts(value: Any) -> Iterator[Any]:
    """The dataclass instances in a tree of configs, tuples, lists and dicts."""
    if dataclasses.is_dataclass(value):
        yield value
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _parts(item)


def missing(modules: Iterable[str]) -> list[str]:
    """Those that this process has not imported, entry points and WEFT_PLUGINS counted."""
    load_installed()
    return [module for module in modules if module not in sys.modules or module == "__main__"]


def way_out(modules: Iterable[str], what: str) -> str:
    """What to do about modules that are missing, as the end of a message; '' if none is."""
    lacking = missing(modules)
    own = [module for module in lacking if module != "__main__"]
    if not lacking:
        return ""
    if not own:
        return f"; {what} uses parts of the program that wrote it: define them before reading it"
    options = " ".join(f"--plugin {module}" for module in own)
    return (
        f"; {what} uses parts of {', '.join(own)}: import it first, or give plugins={own!r}, or "
        f"{options}. weft imports nothing that a file names, since that would run code which the "
        "file chose"
    )


def note(folder: Path) -> None:
    """Add the named modules to those of a run's folder, where there are some."""
    modules = list(dict.fromkeys([*noted(folder), *_named]))
    if modules:
        (folder / NOTE).write_text(json.dumps({"plugins": modules}) + "\n", encoding="utf-8")


def noted(folder: Path) -> list[str]:
    """The modules that a run's folder, or a cell of a comparison, says it was made with."""
    for path in (folder / NOTE, folder / "job.json"):
        if path.is_file():
            return module_names(read_object(path, "plugins")["plugins"], str(path))
    return []


def module_names(found: object, where: str) -> list[str]:
    """The modules that a file names, which may have been edited."""
    if not (isinstance(found, list) and all(isinstance(name, str) for name in found)):
        raise WeftError(f"{where}: plugins is a list of modules; got {found!r:.80}")
    return found


def required(modules: Iterable[str], what: str) -> None:
    """Raise unless all of them are imported."""
    if text := way_out(modules, what):
        raise WeftError(text.removeprefix("; "))
