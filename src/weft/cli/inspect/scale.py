"""`weft scale plan`: what each rank of a mesh holds, computes and sends, before anything runs."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from weft.cli.verbs import App

app = App(help="Several devices: what each of them will hold, compute and send.")


@app.callback()
def _several() -> None:
    """A group of verbs, of which there is one."""


@app.command("plan")
def plan(
    settings: Annotated[
        str, typer.Argument(metavar="SETTINGS", help="A TOML file, or the name of a recipe.")
    ],
    mesh: Annotated[
        str | None,
        typer.Option(help="E.g. dp_shard=4,tp=2; default: [training.mesh] of the settings."),
    ] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="A setting: training.batch=64.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show memory, FLOPs and bytes on the wire of each rank; no device is touched.

    Formulas: docs/how-to/scale-costs.md. `dp` is short for dp_replicate.
    """
    import dataclasses

    from weft.arena.analysis.activations import activation_bytes
    from weft.arena.analysis.flops import forward_flops
    from weft.arena.experiment.runs import model_of
    from weft.arena.experiment.settings import read_settings
    from weft.scale.costs import plan as planned

    experiment = read_settings(settings, list(change or [])).experiment
    training, length = experiment.training, experiment.task.length
    config, ways = model_of(experiment), _mesh(mesh, training.mesh)
    rows = max(1, training.batch // (ways.readers * training.accumulate))
    activations = activation_bytes(
        config, length, rows, precision=training.precision, tp=ways.tp, cp=ways.cp
    )
    found = planned(
        config,
        ways,
        rows=training.batch,
        length=length,
        precision=training.precision,
        accumulate=training.accumulate,
        flops=forward_flops(config, length),
        activations=activations,
    )
    if as_json:
        typer.echo(json.dumps({**dataclasses.asdict(found), "kept_bytes": found.kept_bytes}))
        return
    width = max(len(name) for name, _ in found.rows_of_text())
    for name, value in found.rows_of_text():
        typer.echo(f"{name:{width}}  {value}")


def _mesh(text: str | None, own: Any) -> Any:
    """The mesh of an option, or of the settings."""
    from weft.config import read
    from weft.errors import WeftError
    from weft.scale.mesh import REST, Mesh

    found = own or Mesh()
    if text is not None:
        pairs = [part.partition("=") for part in text.split(",")]
        if any(not value.strip().lstrip("-").isdigit() for _, _, value in pairs):
            raise WeftError(f"a mesh is written dp_shard=4,tp=2; got --mesh {text}")
        names = {"dp": "dp_replicate"}
        table = {names.get(k.strip(), k.strip()): int(v) for k, _, v in pairs}
        found = read(Mesh, table, "mesh")
    if REST in found.sizes:
        raise WeftError("-1 stands for what torchrun starts; give --mesh with numbers to plan")
    return found
