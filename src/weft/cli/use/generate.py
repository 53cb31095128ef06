"""`weft generate`: continue text with a trained model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.options import Device, DeviceOption, JsonRows, RunFolder, Tokenizer

if TYPE_CHECKING:
    from weft.generate import Piece, TextCodec


def generate(
    run: RunFolder,
    prompt: Annotated[
        list[str] | None, typer.Option(help="Text to continue; may be given several times.")
    ] = None,
    batch_file: Annotated[
        Path | None, typer.Option(help="Prompts from a file, one per line; - reads stdin.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=0, help="Added at most.")] = 200,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, help="0 takes the best token (text); 1 draws as learned (pictures)."),
    ] = None,
    top_k: Annotated[int | None, typer.Option(min=1, help="Draw from the k best.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the smallest set of this probability.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Draw from tokens this probable relative to the best.")
    ] = None,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1: tokens seen before become rarer.")
    ] = 1.0,
    stop: Annotated[
        list[str] | None, typer.Option(help="Text that ends a row; may be given several times.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="For the same draws again.")] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Pictures drawn from nothing, of a model of pixels.")
    ] = None,
    complete: Annotated[
        list[Path] | None, typer.Option(help="A picture whose lower part is drawn anew, thrice.")
    ] = None,
    given: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of its rows that the model is given.")
    ] = 0.5,
    out: Annotated[
        Path | None, typer.Option(help="PNG of the pictures; default: in RUN, for its report.")
    ] = None,
    tokenizer: Tokenizer = None,
    native: Annotated[
        bool, typer.Option("--native/--torch", help="Decode in the native library, or in torch.")
    ] = False,
    device: DeviceOption = None,
    json: JsonRows = False,
) -> None:
    """Continue prompts; text appears as it is written. Several prompts run in one batch.

    A model of pixels draws pictures instead: --samples 8, or --complete photo.png, and --out.
    """
    from weft.generate import ByteText, Sampling, TokenizerText

    pictures = bool(samples or complete or out)
    sampling = Sampling(
        temperature=float(pictures) if temperature is None else temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
    )
    if pictures:
        from weft.use.draw import draw

        model = _torch_model(run, native=native, device=device)
        own = run / "drawn" / ("completed.png" if complete else "samples.png")
        return typer.echo(draw(model, out or own, samples or 0, complete or [], given, sampling))
    prompts = _prompts(prompt or [], batch_file)
    text = ByteText() if tokenizer is None else TokenizerText(tokenizer)
    model = _model(run, text, native=native, device=device)
    pieces = model.stream(
        _ids(prompts, text), max_new_tokens, text=text, sampling=sampling, stop=stop or ()
    )
    if json:
        for row, (piece, written) in _rows(pieces, len(prompts)):
            typer.echo(dumps(_record(row, prompts[row], written, piece), ensure_ascii=False))
    elif len(prompts) == 1:
        _show(prompts[0], pieces)
    else:
        for row, (_, written) in _rows(pieces, len(prompts)):
            typer.echo(prompts[row] + written)


def _prompts(given: list[str], batch_file: Path | None) -> list[str]:
    """From the options, a file, or stdin."""
    from weft.errors import WeftError
    from weft.files import read_text

    if given and batch_file is not None:
        raise WeftError("prompts come from --prompt or from --batch-file, not from both")
    if given:
        found, where = given, "--prompt"
    elif batch_file is not None and str(batch_file) != "-":
        found, where = read_text(batch_file).splitlines(), str(batch_file)
    elif batch_file is None and sys.stdin.isatty():
        raise WeftError("nothing to continue; give --prompt TEXT, --batch-file FILE, or a pipe")
    else:
        found, where = sys.stdin.read().splitlines(), "stdin"
    if not found or not all(found):
        line = found.index("") + 1 if found else 1
        raise WeftError(f"a prompt has at least one character; {where} has none at {line}")
    return found


def _model(run: Path, text: TextCodec, *, native: bool, device: Device | None) -> Any:
    """The model of a run or a folder, ready to stream."""
    from weft.errors import WeftError

    if (run / "model.weft").is_file():
        from weft.native import load as load_native

        model: Any = load_native(run)
        vocab = model.vocab if hasattr(model, "vocab") else model.config.trunk.embedding.vocab
    else:
        model = _torch_model(run, native=native, device=device)
        vocab = model.config.trunk.embedding.vocab
    if getattr(getattr(model, "usage", None), "pictures", None):
        raise WeftError(
            f"{run} holds a model of pixels: give --samples 8 or --complete FILE, and --out"
        )
    if vocab < text.vocab:
        raise WeftError(
            f"the model has {vocab} tokens and the text {text.vocab}; give the --tokenizer that "
            "made its training data"
        )
    if native and not (run / "model.weft").is_file():
        from weft.native import compile as compile_native

        return compile_native(model)
    return model


def _torch_model(run: Path, *, native: bool, device: Device | None) -> Any:
    from weft.errors import Unsupported
    from weft.models import Encoder, EncoderDecoder, LanguageModel, load
    from weft.training.settings import device_named

    where = device_named("cpu" if native else device.value if device else "auto")
    model = load(run, where)
    trunk = model.config.trunk if isinstance(model.config, LanguageModel) else None
    if trunk is None or isinstance(trunk, Encoder):
        kind = type(model.config).__name__
        raise Unsupported(
            f"{run} holds a {kind} that reads both ways and cannot write; text is written by a "
            "LanguageModel on a Decoder, such as one trained on the task `language`"
        )
    if isinstance(trunk, EncoderDecoder):
        raise Unsupported(
            f"{run} holds an encoder-decoder, which needs a source for each target; use "
            "model.generate(ids, n, source=...) in Python"
        )
    return model


def _ids(prompts: list[str], text: TextCodec) -> list[Any]:
    import torch

    return [torch.tensor(text.encode(prompt), dtype=torch.long) for prompt in prompts]


def _show(prompt: str, pieces: Iterator[Piece]) -> None:
    """One row, as it is written."""
    typer.echo(prompt, nl=False)
    for piece in pieces:
        typer.echo(piece.text, nl=False)
        sys.stdout.flush()
    typer.echo("")


def _rows(pieces: Iterator[Piece], count: int) -> Iterator[tuple[int, tuple[Piece, str]]]:
    """Whole rows in order, each as soon as it and those before it have ended."""
    written = [""] * count
    ended: dict[int, Piece] = {}
    following = 0
    for piece in pieces:
        written[piece.row] += piece.text
        if piece.reason is not None:
            ended[piece.row] = piece
        while following in ended:
            yield following, (ended[following], written[following])
            following += 1


def _record(row: int, prompt: str, written: str, last: Piece) -> dict[str, Any]:
    return {
        "row": row,
        "prompt": prompt,
        "text": written,
        "new_tokens": len(last.tokens),
        "ended_by": last.reason,
    }
