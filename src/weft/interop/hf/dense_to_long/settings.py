"""How a model is converted, and who is told how it goes."""

from __future__ import annotations

from dataclasses import dataclass

from weft.errors import WeftError, at_least
from weft.interop.hf.dense_to_long.form import texts_of
from weft.interop.hf.dense_to_long.training import ContinuedTraining, TrainingProgress
from weft.interop.hf.plug.layers import Patterns

EVERY = 30.0  # seconds between the states of a training on disk
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """How a dense model becomes a long one."""

    length: int  # tokens it reads afterwards
    pattern: Patterns  # for all layers, or {"*": "sliding(512)", "4,9-11": "full()"}
    minutes: float | None = None  # of training; or steps
    steps: int | None = None
    rotary: float | None = None  # factor of far layers' bases; None: the best on the user's text
    rate: float = 3e-4
    batch: int = 1  # rows in a step
    held_rows: int = 8  # held out, at most
    probe_rows: int = 2  # of the training text, on which the rotary factor is chosen
    rounds: int = 2  # of timing prefill; 0: it is not timed
    checkpointing: bool = False  # activations are computed again in the backward pass
    head: str | None = None  # as MaskedLM; None: the checkpoint's own
    device: str = "cpu"
    dtype: str = "float32"  # of the weights, while training and as saved
    seed: int = 0

    def __post_init__(self) -> None:
        at_least(1, length=self.length, batch=self.batch, held_rows=self.held_rows)
        at_least(1, probe_rows=self.probe_rows)
        at_least(0, rounds=self.rounds, seed=self.seed)
        object.__setattr__(self, "pattern", texts_of(self.pattern))
        if self.dtype not in DTYPES:
            raise WeftError(f"dtype is one of {', '.join(DTYPES)}; got {self.dtype!r}")
        if self.rotary is not None and not self.rotary >= 1:
            raise WeftError(f"a rotary base is multiplied by 1 or more; got {self.rotary}")
        if self.minutes is not None or self.steps is not None:
            self.training()  # refuses what cannot be

    def training(self) -> ContinuedTraining:
        """The settings of the continued training."""
        return ContinuedTraining(
            rate=self.rate,
            batch=self.batch,
            minutes=self.minutes,
            steps=self.steps,
            seed=self.seed,
            every=EVERY,
            checkpointing=self.checkpointing,
        )


class ConversionListener:
    """Hears how a conversion goes, does nothing."""

    def note(self, text: str) -> None:
        """Something was found, or begins."""

    def training(self, progress: TrainingProgress) -> None:
        """A step was done."""
