"""What a conversion found, and its rows."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from weft.environment import environment
from weft.interop.hf.dense_to_long.form import LongForm
from weft.interop.hf.dense_to_long.losses import bins_of, in_bins
from weft.interop.hf.dense_to_long.measure import cosines
from weft.interop.hf.dense_to_long.probe import BaseTrial
from weft.interop.hf.dense_to_long.settings import Conversion
from weft.rows import Row

CURVE = 64  # points of a curve in a row


@dataclass(frozen=True)
class Findings:
    """Everything that the report shows."""

    source: Path
    settings: Conversion
    form: LongForm
    kind: str  # class of the model
    note: str  # about the text
    trials: Sequence[BaseTrial]  # of the rotary base, best first
    curves: Mapping[str, Tensor]  # losses by position (n,), by name
    short: Sequence[Tensor]  # vectors (t, c) of short texts before and after
    training: Mapping[str, float]
    cost: Mapping[str, Mapping[str, float]]  # of prefill, "dense" and "sparse"
    command: Mapping[str, Any]

    @property
    def bins(self) -> list[tuple[int, int]]:
        """Spans of positions that losses are averaged over."""
        return bins_of(self.form.length, self.form.trained)

    @property
    def cosine(self) -> tuple[float, float] | None:
        """Mean and least cosine of short texts' vectors to the original's."""
        if not self.short:
            return None
        found = cosines(*self.short)
        return float(found.mean()), float(found.min())

    @property
    def faster(self) -> float | None:
        """How many times faster prefill is than dense."""
        return self._ratio("seconds")

    @property
    def smaller(self) -> float | None:
        """How many times smaller the decoding state is than dense."""
        return self._ratio("state_bytes")

    def _ratio(self, key: str) -> float | None:
        if not self.cost or not self.cost["sparse"][key]:
            return None
        return self.cost["dense"][key] / self.cost["sparse"][key]

    def line(self) -> str:
        """The command that does it again."""
        own = self.settings
        words = ["weft", "convert", str(self.source), "OUT", "--length", str(own.length)]
        for key, pattern in self.form.patterns.items():
            words += ["--pattern", pattern] if key == "*" else ["--layer", f"{key}={pattern}"]
        for key, value in self.command.items():
            words += [] if value is None else [f"--{key.replace('_', '-')}", str(value)]
        for name in ("minutes", "steps", "rotary", "head"):
            value = getattr(own, name)
            words += (
                [] if value is None else [f"--{name}", f"{value:g}" if name != "head" else value]
            )
        words += ["--rate", f"{own.rate:g}", "--batch", str(own.batch), "--seed", str(own.seed)]
        return shlex.join([*words, "--device", own.device, "--dtype", own.dtype])


def rows_of(found: Findings) -> list[Row]:
    """Flat rows: one for each curve, each trial of a rotary base, and the costs."""
    base: Row = {
        "model": str(found.source),
        "class": found.kind,
        "length": found.form.length,
        "trained": found.form.trained,
    }
    rows = [
        base
        | {"row": "loss", "variant": name, "loss": _known(float(curve.nanmean()))}
        | {f"loss_{k}": _known(v) for k, v in in_bins(curve, found.bins).items()}
        | {"curve": ",".join(f"{x:.4f}" for x in points(curve))}
        for name, curve in found.curves.items()
    ]
    for trial in found.trials:
        own = {f"loss_{k}": _known(v) for k, v in trial.bins.items()}
        rows.append(base | {"row": "rotary", "factor": trial.factor, "loss": trial.mean} | own)
    for name, cost in found.cost.items():
        rows.append(base | {"row": "prefill", "variant": name} | dict(cost))
    whole = base | {"row": "conversion", "patterns": str(dict(found.form.patterns))}
    whole |= {"rotary_factor": found.form.rotary_factor, "text": found.note}
    whole |= {"rotary_layers": ",".join(map(str, found.form.rotary_layers))}
    whole |= {f"training_{k}": v for k, v in found.training.items()}
    if found.cosine is not None:
        whole |= {"short_cosine": found.cosine[0], "short_cosine_least": found.cosine[1]}
    stamp = environment(found.settings.device)
    return [row | stamp for row in [*rows, whole]]


def points(curve: Tensor) -> list[float]:
    """The curve (n,) in up to 64 points."""
    return [float(part.nanmean()) for part in curve.chunk(min(CURVE, len(curve)))]


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
