"""`weft convert`: a dense Transformers model made long and sparse."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.options import DeviceOption, Steps


class ConvertPrecision(StrEnum):
    """What the weights are trained and stored in."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


def convert(
    model: Annotated[Path, typer.Argument(help="A Transformers folder, or a .gguf file.")],
    out: Annotated[Path, typer.Argument(help="Folder of the long model.")],
    length: Annotated[int, typer.Option(min=2, help="Tokens that it reads afterwards.")],
    pattern: Annotated[str, typer.Option(help='Of all layers: "sliding(512) | keys(first=4)".')],
    layer: Annotated[
        list[str] | None, typer.Option(help='Of some layers, from 0: "4,9-11=sliding(8192)".')
    ] = None,
    train: Annotated[
        Path | None, typer.Option(help="Text to train on: a file, a folder, JSON lines.")
    ] = None,
    held_out: Annotated[
        Path | None, typer.Option(help="Text to measure on; default: some of --train.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Of training; measuring adds to it.")
    ] = None,
    steps: Steps = None,
    rotary: Annotated[
        float | None, typer.Option(help="Factor of rotary bases; default: the best on your text.")
    ] = None,
    rate: Annotated[float, typer.Option(help="The highest learning rate.")] = 3e-4,
    batch: Annotated[int, typer.Option(min=1, help="Rows in a step.")] = 1,
    held_rows: Annotated[int, typer.Option(min=1, help="Rows held out, at most.")] = 8,
    rounds: Annotated[int, typer.Option(min=0, help="Of timing prefill; 0: it is not timed.")] = 2,
    checkpointing: Annotated[
        bool, typer.Option("--checkpointing", help="Less memory in training, more time.")
    ] = False,
    head: Annotated[
        str | None, typer.Option(help="As MaskedLM; Model: the body alone. Default: its own.")
    ] = None,
    device: DeviceOption = None,
    dtype: Annotated[
        ConvertPrecision | None, typer.Option(help="Default: bfloat16 on cuda, else float32.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Make a dense pretrained model read long texts, by patterns and continued training.

    It can be killed: the same command goes on. The folder is loaded by Transformers after
    `import weft.interop.hf`, and holds a report: losses by position beside those of the
    original in chunks.
    """
    import torch

    from weft.cli.screen import console
    from weft.interop.hf import Conversion
    from weft.interop.hf import convert as run

    where = device.value if device else ("cuda" if torch.cuda.is_available() else "cpu")
    kept = dtype.value if dtype else ("bfloat16" if where == "cuda" else "float32")
    settings = Conversion(
        length=length,
        pattern={"*": pattern} | dict(map(_layer, layer or [])),
        minutes=minutes,
        steps=steps,
        rotary=rotary,
        rate=rate,
        batch=batch,
        held_rows=held_rows,
        rounds=rounds,
        checkpointing=checkpointing,
        head=head,
        device=where,
        dtype=kept,
        seed=seed,
    )
    with _screen(console(error=True)) as listener:
        run(model, out, settings, train=train, held_out=held_out, listener=listener)
    typer.echo(f"{out}: the model, its tokenizer, report.html, README.md and rows.jsonl")


def _layer(text: str) -> tuple[str, str]:
    layers, found, pattern = text.partition("=")
    if not found:
        raise typer.BadParameter(f'--layer is "4,9-11=sliding(8192)"; got {text!r}')
    return layers.strip(), pattern


def _screen(screen: Any) -> Any:
    """A listener with a bar for the training and lines for the rest."""
    from weft.cli.experiment.live import bar
    from weft.interop.hf import ConversionListener
    from weft.printable import printable

    class Screen(ConversionListener):
        def __init__(self) -> None:
            self.bars, self.task = bar(screen), None

        def __enter__(self) -> Screen:
            self.bars.start()
            return self

        def __exit__(self, *error: object) -> None:
            self.bars.stop()

        def note(self, text: str) -> None:
            screen.print(printable(text), markup=False, soft_wrap=True)

        def training(self, progress: Any) -> None:
            if self.task is None:
                rest = progress.steps - progress.step
                self.note(
                    f"training: {progress.steps:,} steps, {rest:,} to go, about "
                    f"{rest * progress.seconds / progress.step:.0f} s"
                )
                self.task = self.bars.add_task("training", total=progress.steps, note="")
            rate = progress.tokens / max(progress.seconds, 1e-9)
            shown = f"loss {progress.loss:.4f}, {rate:,.0f} tokens/s"
            self.bars.update(self.task, completed=progress.step, note=shown)
            if progress.step == progress.steps:
                self.bars.remove_task(self.task)
                self.note(f"trained {progress.steps:,} steps in {progress.seconds:.0f} s: {shown}")

    return Screen()
