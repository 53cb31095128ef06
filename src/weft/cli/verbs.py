"""What all verbs share: `--plugin`, and mistakes shown as one message."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from weft.errors import WeftError
from weft.plugins import load_plugins, noted, way_out
from weft.printable import printable

Plugins = Annotated[
    list[str] | None,
    typer.Option("--plugin", metavar="MODULE", help="A module that registers parts of yours."),
]


class Verbs(TyperGroup):
    """Shows a caller's mistake as one message instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except WeftError as error:
            _refuse(str(error))
        except OSError as error:
            unread = isinstance(error, BrokenPipeError) and error.filename is None
            if error.errno is None or unread:  # not the system's; `| head` has seen enough
                raise
            _refuse(_in_words(error))


_WAYS_OUT = {
    errno.ENOSPC: "the disk is full; make room and run the same command, which goes on",
    errno.EDQUOT: "your share of the disk is used up; make room and run the same command",
    errno.EIO: "the disk failed; check it, and run the same command elsewhere",
    errno.EMFILE: "too many files are open; raise `ulimit -n`",
}


def _in_words(error: OSError) -> str:
    """What the system refused, and the way out."""
    what = "a file or a pipe" if error.filename is None else str(error.filename)
    way_out = _WAYS_OUT.get(error.errno or 0, "give another place, or change who may use this one")
    return f"{what} cannot be used: {error.strerror}; {way_out}"


def _refuse(message: str) -> NoReturn:
    typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
    typer.echo(printable(message), err=True)
    raise typer.Exit(1) from None


class App(typer.Typer):
    """Verbs, each of which takes --plugin."""

    def command(self, name: str | None = None, **given: Any) -> Callable[[Any], Any]:
        """Register a verb; the function itself stays as it is."""
        add = super().command(name, **given)

        def register(verb: Callable[..., Any]) -> Callable[..., Any]:
            add(takes_plugins(verb))
            return verb

        return register


def takes_plugins(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The verb with one more option; the modules are imported before it runs."""

    @wraps(verb)
    def run(plugin: list[str] | None = None, **given: Any) -> Any:
        load_plugins(plugin or [])
        try:
            return verb(**given)
        except WeftError as error:
            if not (lacking := _lacking(given.get("run"))) or lacking in str(error):
                raise
            raise type(error)(f"{error}{lacking}") from error

    own = signature(verb, eval_str=True)
    extra = Parameter("plugin", Parameter.KEYWORD_ONLY, default=None, annotation=Plugins)
    shown = own.replace(parameters=[*own.parameters.values(), extra])
    setattr(run, "__signature__", shown)  # noqa: B010  # a function is typed without it
    run.__annotations__ = {name: found.annotation for name, found in shown.parameters.items()}
    del run.__wrapped__
    return run


def _lacking(folder: Path | None) -> str:
    """The plug-ins of a run's folder that were not given, as the end of a message."""
    return "" if folder is None else way_out(noted(folder), str(folder))
