"""`weft bench`: measure on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.measure.bench_decode import decode
from weft.cli.options import Device, DeviceOption, Rounds
from weft.cli.verbs import App

app = App(no_args_is_help=True, help="Measure speed and memory on this machine.")


class DType(StrEnum):
    """In what precision."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float64 = "float64"


@app.callback()
def _bench() -> None:
    pass


@app.command("attention")
def attention(
    device: DeviceOption = None,
    dtype: Annotated[
        DType | None, typer.Option(help="Default: bfloat16 on cuda, float32 on cpu.")
    ] = None,
    lengths: Annotated[str, typer.Option(help="Tokens, separated by commas.")] = "1024,4096",
    mixers: Annotated[
        str, typer.Option(help="Specs separated by commas, or 'all'; dense is always measured.")
    ] = "all",
    patterns: Annotated[
        str, typer.Option(help="Patterns separated by commas: attention cores under them.")
    ] = "",
    rivals: Annotated[
        str, typer.Option(help="Layers of the Transformers library: names, or 'all'.")
    ] = "",
    core: Annotated[
        bool, typer.Option("--core", help="Measure the mixers without projections as well.")
    ] = False,
    heads: Annotated[int, typer.Option(min=1)] = 8,
    head_dim: Annotated[int, typer.Option(min=1)] = 64,
    kv_heads: Annotated[
        int | None, typer.Option(min=1, help="Heads of keys and values, shared by query heads.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1)] = 1,
    causal: Annotated[bool, typer.Option("--causal", help="Hide the future.")] = False,
    rounds: Rounds = 10,
    graph: Annotated[
        bool, typer.Option("--graph", help="On cuda: replay CUDA graphs where possible.")
    ] = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="Measure peak memory of forward + backward.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Append rows to this .jsonl, and plot beside it.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot here instead: .png or .svg.")] = None,
) -> None:
    """Time whole self-attention layers, forward and forward + backward, against dense attention.

    A case has to agree with its reference before it gets a number, and the cases take turns.
    """
    from weft.bench import Bench, Setting, choose
    from weft.cli.screen import console
    from weft.report import append, bench_table, to_rich

    wanted = whole_numbers(lengths, "lengths")
    chosen_device, chosen_dtype = _defaults(device, dtype)
    setting = Setting(
        device=chosen_device,
        dtype=chosen_dtype,
        batch=batch,
        heads=heads,
        head_dim=head_dim,
        kv_heads=kv_heads,
        causal=causal,
    )
    chosen = choose(mixers, patterns=patterns, rivals=rivals, core=core)
    bench = Bench(
        cases=chosen, setting=setting, lengths=wanted, rounds=rounds, graph=graph, memory=memory
    )
    found: list[dict[str, Any]] = []
    with progress(bench):
        for rows in bench.run():
            found += rows
            if out is not None:
                append(out, rows)
    screen = console()
    screen.print(to_rich(bench_table(found)))
    if out is not None:
        screen.print(f"added {len(found)} rows to {out}", markup=False, soft_wrap=True)
    _plot(found, out, plot, screen)


app.command("decode")(decode)


def whole_numbers(text: str, option: str) -> list[int]:
    """`1024,4096` -> [1024, 4096]."""
    try:
        found = [int(part.replace("_", "")) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise typer.BadParameter(
            f"whole numbers of at least 1 separated by commas, such as 1024,4096; got {text!r}",
            param_hint=f"--{option}",
        )
    return list(dict.fromkeys(found))


def _defaults(device: Device | None, dtype: DType | None) -> tuple[str, str]:
    import torch

    chosen = device.value if device else "cuda" if torch.cuda.is_available() else "cpu"
    if dtype is not None:
        return chosen, dtype.value
    return chosen, "bfloat16" if chosen == "cuda" else "float32"


@contextmanager
def progress(bench: Any) -> Iterator[None]:
    """A bar on stderr while the benchmark runs."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from weft.cli.screen import console

    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console(error=True), transient=True) as bar:
        task = bar.add_task("", total=bench.steps)
        bench.progress = lambda text: bar.update(task, advance=1, description=text)
        yield


def _plot(found: list[dict[str, Any]], out: Path | None, plot: Path | None, screen: Any) -> None:
    """Where asked for; beside the rows only if matplotlib is there and there are numbers."""
    from importlib.util import find_spec

    from weft.report import plot_bench

    if plot is None:
        if out is None or all(row["median_s"] is None for row in found):
            return
        if find_spec("matplotlib") is None:
            screen.print("no plot: matplotlib is not installed; pip install matplotlib")
            return
        plot = out.with_suffix(".png")
    plot_bench(found, plot)
    screen.print(f"wrote {plot}", markup=False, soft_wrap=True)
