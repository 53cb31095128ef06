"""`weft VERB ...`: the verbs, and what they share.

A verb imports what it needs when it runs, so `weft --help` loads no torch. A wrong call ends with
status 2, a broken rule of weft (`WeftError`) with its message and status 1.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from weft.cli.experiment import ablate, compare, train
from weft.cli.inspect import mixers, pattern, plan, scale, tasks
from weft.cli.interop import converting, exporting, importing
from weft.cli.make import example_data, new, report
from weft.cli.measure import bench
from weft.cli.use import (
    advise,
    evaluate,
    explain,
    export,
    generate,
    predict,
    probe,
    quantise,
    shift,
    tour,
)
from weft.cli.verbs import App, Plugins, Verbs
from weft.plugins import load_plugins

app = App(
    cls=Verbs,
    name="weft",
    help="Transformers for long sequences: look at mechanisms, compare them, train and run them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # "rich" takes [brackets] of a text for its own
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
    plugin: Plugins = None,
) -> None:
    load_plugins(plugin or [])


app.command("tour")(tour.tour)
app.command("compare")(compare.compare)
app.command("ablate")(ablate.ablate)
app.command("train")(train.train)
app.command("eval")(evaluate.evaluate)
app.command("shift")(shift.shift)
app.command("explain")(explain.explain)
app.command("probe")(probe.probe)
app.command("predict")(predict.predict)
app.command("show")(predict.show)
app.command("generate")(generate.generate)
app.command("quantise")(quantise.quantise)
app.command("convert")(converting.convert)
app.command("advise")(advise.advise)
app.command("mixers")(mixers.mixers)
app.command("pattern")(pattern.pattern)
app.command("plan")(plan.plan)
app.command("tasks")(tasks.tasks)
app.command("report")(report.report)
app.command("new")(new.new)
app.command("example-data")(example_data.example_data)
app.add_typer(bench.app, name="bench")
app.add_typer(scale.app, name="scale")
exporting.app.command("onnx")(export.onnx)
app.add_typer(exporting.app, name="export")
app.add_typer(importing.app, name="import")


def main() -> None:
    """The `weft` command."""
    app(prog_name="weft")
