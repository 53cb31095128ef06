"""A model as an ONNX file: `weft export onnx RUN OUT.onnx`.

The file has one input, `ids` (batch, length), int64, without padding: rows of a batch are equally
long. Its output is `scores` (batch, classes), or `logits` (batch, length, vocab) of a language
model. Any batch; any length where the mechanism's graph allows it, else the one that is given.

ONNX has no block-sparse attention. Attention under a pattern is written as dense attention under
its mask: the same numbers, n² time and memory. Mechanisms of other kinds keep their cost.
A file is compared with the model, by onnxruntime, before it gets its name.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import Unsupported, WeftError
from weft.files import replacing
from weft.kernels.attend.bias import dense_bias
from weft.kernels.attend.masking import make_labels
from weft.kernels.dense.reference import dense_attention
from weft.kernels.planner.context import forced, replaced
from weft.models import Classifier, LanguageModel
from weft.patterns import Full, Pattern

NEEDED = ("onnx", "onnxscript", "onnxruntime")
TOLERANCE = 1e-4  # largest difference of an output, relative to outputs above 1
TRACED = (
    96  # tokens of the traced batch where any length is wanted; no block size divides it evenly
)
OPSET = 20


@dataclass(frozen=True)
class Exported:
    """What was written."""

    path: Path
    length: int | None  # None: any
    difference: float  # largest, to the model, on inputs of several shapes
    dense_patterns: bool  # whether a pattern became dense attention under a mask


def export_onnx(model: nn.Module, path: str | Path, length: int | None = None) -> Exported:
    """Write a classifier, a regression or a decoder language model as ONNX, checked.

    `length`: every sequence has this many tokens; None: any length, where the mechanism can.
    """
    _check(model, length)
    path = Path(path)
    with replacing(path) as temporary, _quiet():
        exported = _written(model, temporary, length)
        worst = max(_difference(model, temporary, shape) for shape in _shapes(model, length))
        if not worst <= TOLERANCE:
            raise Unsupported(
                f"the exported graph differs from the model by {worst:.1e}, more than "
                f"{TOLERANCE:.0e}: a mechanism that draws at random, or chooses among near ties, "
                "cannot be exported"
            )
    return Exported(path, length, worst, exported)


def _check(model: nn.Module, length: int | None) -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise WeftError(f"export needs {', '.join(missing)}: pip install {' '.join(missing)}")
    if not isinstance(getattr(model, "config", None), Classifier | LanguageModel):
        raise WeftError(
            "classifiers, regressions and language models are exported; got "
            f"{type(model).__name__}, which reads more than one sequence or gives more than scores"
        )
    if length is not None and length < 1:
        raise WeftError(f"length is at least 1; got length={length}")


def _written(model: nn.Module, path: Path, length: int | None) -> bool:
    """Trace and write; whether attention under a pattern was among it."""
    sizes = torch.export.Dim.DYNAMIC
    dynamic = {0: sizes} if length else {0: sizes, 1: sizes}
    ids = torch.zeros(2, length or TRACED, dtype=torch.int64)
    masked: list[Pattern] = []
    try:
        with _traceable(masked), torch.no_grad():
            graph = torch.export.export(
                _Scores(model).eval(), (ids,), dynamic_shapes=(dynamic,), strict=False
            )
            program = torch.onnx.export(graph, (), dynamo=True, opset_version=OPSET, verbose=False)
        assert program is not None
        program.save(str(path), external_data=False)
    except WeftError as error:
        raise _refusal(model, length, str(error)) from error
    except Exception as cause:  # torch.export raises errors of many kinds
        raise _refusal(model, length, _first_line(cause)) from cause
    return bool(masked)


class _Scores(nn.Module):
    """A model that takes ids alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """(b, n) -> its scores."""
        return self.model(ids)


@contextlib.contextmanager
def _traceable(masked: list[Pattern]) -> Iterator[None]:
    """Attention and mechanisms by their plain form; patterns that were met are listed."""
    with replaced(partial(_masked_attention, masked)), forced("torch"):
        yield


def _masked_attention(
    masked: list[Pattern], q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, options: Any
) -> Any:
    """For `replaced`: dense attention under the mask of the pattern, for any symbolic length."""
    heads, n, m = q.shape[1], q.shape[2], k.shape[2]
    i = torch.arange(m - n, m)[:, None] if n != m else torch.arange(m)[:, None]
    j = torch.arange(m)[None, :]
    mask = None
    if pattern != Full():
        masked.append(pattern)
        each = [pattern.head(a, heads) for a in range(heads)] if pattern.per_head else [pattern]
        mask = torch.stack([own.sees(i, j, m) & (j >= 0) for own in each])[None]  # (1, h, n, m)
    labels = make_labels(options.valid, options.segments, n)
    if labels is not None:
        raise Unsupported("it numbers or masks keys, which the exported graph does not hold")
    bias = None if options.bias is None else dense_bias(options.bias, heads, i, j)
    out, lse = dense_attention(q, k, v, mask=mask, bias=bias, scale=options.scale)
    return (out, lse) if options.lse else out


def _shapes(model: nn.Module, length: int | None) -> list[tuple[int, int]]:
    """Batches and lengths on which file and model are compared."""
    if length:
        return [(1, length), (3, length)]
    most = getattr(getattr(model, "usage", None), "length", 0) or 300
    return [(2, TRACED), (1, min(most, 300)), (3, min(most, 17)), (1, 1)]


def _difference(model: nn.Module, path: Path, shape: tuple[int, int]) -> float:
    """The largest difference between the outputs of the file and of the model."""
    import onnxruntime

    config: Any = model.config
    vocab = int(config.trunk.embedding.vocab)
    ids = torch.randint(vocab, shape, generator=torch.Generator().manual_seed(sum(shape)))
    with torch.no_grad():
        wanted = model(ids)
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        found = torch.from_numpy(session.run(None, {"ids": ids.numpy()})[0])
    except Exception as cause:  # onnxruntime raises errors of its own kinds
        raise _refusal(model, None, f"onnxruntime, {shape}: {_first_line(cause)}") from cause
    error = (found - wanted).abs() / wanted.abs().clamp(min=1.0)
    return float(error.max().nan_to_num(float("inf")))


def _refusal(model: nn.Module, length: int | None, reason: str) -> Unsupported:
    mixers = sorted({mixer.name for mixer in _mixers(model)})
    advice = (
        "it cannot be exported"
        if length
        else "one length may work: --length N (export_onnx(..., length=N)), each row of N tokens"
    )
    wanted = f"{length} tokens" if length else "any length"
    return Unsupported(f"{', '.join(mixers)} has no ONNX graph for {wanted} ({reason}); {advice}")


def _mixers(model: nn.Module) -> list[Any]:
    from weft.mixers.base import Mixer

    return [part.config for part in model.modules() if isinstance(part, Mixer)]


def _first_line(cause: BaseException) -> str:
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {lines[0]:.120}" if lines else type(cause).__name__


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What torch prints and logs while it traces is not for people."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            with contextlib.redirect_stdout(io.StringIO()):
                yield
    finally:
        logging.disable(before)
