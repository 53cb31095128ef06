"""`weft VERB ...`: the verbs, and what they share.

A verb imports what it needs when it runs, so `weft --help` loads no torch. A wrong call ends with
status 2, a broken rule of weft (`WeftError`) with its message and status 1.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from weft.cli import (
    ablate,
    bench,
    compare,
    generate,
    mixers,
    pattern,
    quantise,
    report,
    tasks,
    train,
)
from weft.cli import eval as evaluation
from weft.errors import WeftError


class Verbs(TyperGroup):
    """Shows a caller's mistake as one message instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except WeftError as error:
            typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
            typer.echo(str(error), err=True)
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=Verbs,
    name="weft",
    help="Transformers for long sequences: look at mechanisms, compare them, train and run them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"weft {import_module('weft').__version__}")
        raise typer.Exit


@app.callback()
def _every_verb(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


app.command("compare")(compare.compare)
app.command("ablate")(ablate.ablate)
app.command("train")(train.train)
app.command("eval")(evaluation.evaluate)
app.command("generate")(generate.generate)
app.command("quantise")(quantise.quantise)
app.command("mixers")(mixers.mixers)
app.command("pattern")(pattern.pattern)
app.command("tasks")(tasks.tasks)
app.command("report")(report.report)
app.add_typer(bench.app, name="bench")


def main() -> None:
    """The `weft` command."""
    app(prog_name="weft")
