"""`weft bench decode`: milliseconds per token of dense and sparse models on this CPU."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.options import Rounds, StoredAs


class TimedPart(StrEnum):
    """What is timed."""

    model = "model"
    feedforward = "feedforward"


class OutputLayer(StrEnum):
    """The output layer."""

    linear = "linear"
    sparse = "sparse"


def decode(
    preset: Annotated[
        str, typer.Option(help="The sparse model; its dense twin is timed with it.")
    ] = "terraformer_0_8b",
    part: Annotated[
        TimedPart, typer.Option(help="The whole model, or its feed-forward.")
    ] = TimedPart.model,
    layers: Annotated[
        int | None, typer.Option(min=1, help="Time N layers and multiply; default: all.")
    ] = None,
    dim: Annotated[int, typer.Option(min=32, help="Width, with --part feedforward.")] = 2048,
    block: Annotated[int, typer.Option(min=1, help="Units of which one is computed.")] = 64,
    weights: Annotated[StoredAs, typer.Option()] = StoredAs.float32,
    cache: Annotated[StoredAs, typer.Option(help="Keys and values, native.")] = StoredAs.float32,
    output: Annotated[StoredAs, typer.Option(help="Output layer, native.")] = StoredAs.float32,
    head: Annotated[
        OutputLayer, typer.Option(help="Output layer of both models.")
    ] = OutputLayer.linear,
    context: Annotated[int, typer.Option(min=1, help="Tokens in the cache.")] = 512,
    batches: Annotated[str, typer.Option(help="Rows decoded together, by commas.")] = "1",
    dense: Annotated[
        str, typer.Option(help="How dense models run; the better one is the baseline.")
    ] = "torch,native",
    sparse: Annotated[str, typer.Option(help="How sparse models run.")] = "native",
    llama: Annotated[str, typer.Option(help="Precisions of llama.cpp: f32, f16, q8_0, q4_0.")] = "",
    rounds: Rounds = 10,
    threads: Annotated[int | None, typer.Option(min=1, help="Default: all cores.")] = None,
    out: Annotated[Path | None, typer.Option(help="Append rows to this .jsonl.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Rows as JSON lines, no tables.")] = False,
) -> None:
    """Time dense and sparse decoding in turns, against memory bandwidth measured in the same turns.

    A native model has to agree with torch before it gets a number.
    """
    from json import dumps

    from weft.bench.decode_run import DecodeBench
    from weft.cli.measure.bench import progress, whole_numbers
    from weft.cli.screen import console
    from weft.report import append, to_rich
    from weft.report.tables.decode import decode_parts_table, decode_table

    _use_threads(threads)
    common = {
        "weights": weights.value,
        "cache": cache.value,
        "output": output.value,
        "context": context,
        "rounds": rounds,
    }
    found: list[dict[str, Any]] = []
    for batch in whole_numbers(batches, "batches"):
        setting = _setting(part, preset, layers, dim, block, head, {**common, "batch": batch})
        bench = DecodeBench(
            setting=setting, dense=_names(dense), sparse=_names(sparse), llama=_names(llama)
        )
        with progress(bench):
            rows = bench.run()
        found += rows
        if out is not None:
            append(out, rows)
    if json:
        for row in found:
            typer.echo(dumps(row, ensure_ascii=False))
        return
    screen = console()
    screen.print(to_rich(decode_table(found)))
    screen.print(to_rich(decode_parts_table(found)))
    if out is not None:
        screen.print(f"added {len(found)} rows to {out}", markup=False, soft_wrap=True)


def _setting(
    part: TimedPart,
    preset: str,
    layers: int | None,
    dim: int,
    block: int,
    head: OutputLayer,
    common: dict[str, Any],
) -> Any:
    from weft.bench.decode_setting import feedforward_setting, preset_setting
    from weft.errors import WeftError

    if part is TimedPart.model:
        return preset_setting(preset, timed=layers, block=block, head=head.value, **common)
    if layers is not None:
        raise WeftError("--layers belongs to whole models; a feed-forward is timed alone")
    return feedforward_setting(dim, block, **common)


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _use_threads(threads: int | None) -> None:
    """The same threads for torch and for the native library."""
    import os

    import torch

    from weft.native import available, set_threads

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    count = threads or usable or 1
    torch.set_num_threads(count)
    if available() is None:
        set_threads(count)
