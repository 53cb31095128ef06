"""`weft new`: a part of your own, as files that work and pass the checks, to be changed."""

from __future__ import annotations

import keyword
import re
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from weft.errors import WeftError

_USES = {
    "mixer": "mixers",
    "pattern": "pattern '{}(2, 9)' --length 64",
    "feedforward": "train SETTINGS --set 'model.feedforward={}'",
    "task": "tasks {}",
}
TEMPLATES = Path(__file__).parent / "templates"


class Kind(StrEnum):
    """What is begun."""

    mixer = "mixer"
    pattern = "pattern"
    feedforward = "feedforward"
    task = "task"


def new(
    kind: Annotated[Kind, typer.Argument(help="What it is.")],
    name: Annotated[str, typer.Argument(help="Its name, such as my_mixer.")],
    into: Annotated[Path, typer.Option(help="Folder of the files.")] = Path("."),
) -> None:
    """Write a working part and its test (a mixer's page too): change them into yours.

    It is a plug-in: `weft mixers --plugin NAME` knows it in the folder that holds it.
    """
    for path in write(kind.value, name, into):
        typer.echo(f"wrote {path}")
    typer.echo(f"test it: pytest {into / f'test_{name}.py'}")
    typer.echo(f"use it: weft {_USES[kind.value].format(name)} --plugin {name}")


def write(kind: str, name: str, into: Path) -> list[Path]:
    """The files, written; nothing is where one of them would be overwritten."""
    texts = rendered(kind, name)
    found = [into / file for file in texts if (into / file).exists()]
    if found:
        raise WeftError(f"{', '.join(map(str, found))} is there already; choose another name")
    _check_name(kind, name)
    into.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        (into / file).write_text(text, encoding="utf-8")
    return [into / file for file in texts]


def rendered(kind: str, name: str) -> dict[str, str]:
    """The files of a part by their names."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise WeftError(
            f"a name is small letters, digits and underscores, such as my_{kind}; got {name!r}"
        )
    names = {"name": name, "Class": "".join(map(str.capitalize, name.split("_")))}
    files = {f"{name}.py": f"{kind}.py", f"test_{name}.py": f"{kind}_test.py"}
    if kind == "mixer":
        files[f"{name}.md"] = f"{kind}.md"
    return {
        file: Template((TEMPLATES / f"{source}.txt").read_text("utf-8")).substitute(names)
        for file, source in files.items()
    }


def _check_name(kind: str, name: str) -> None:
    """Neither a part nor a module has the name."""
    from weft.arena.tasks import TASKS
    from weft.feedforward import FEEDFORWARDS
    from weft.mixers import MIXERS
    from weft.patterns import PATTERNS

    registries = {"mixer": MIXERS, "pattern": PATTERNS, "feedforward": FEEDFORWARDS, "task": TASKS}
    if name in registries[kind]:
        raise WeftError(f"there is a {kind} named {name!r} already; choose another name")
    if find_spec(name) is not None:
        raise WeftError(f"there is a module named {name!r} already; choose another name")
