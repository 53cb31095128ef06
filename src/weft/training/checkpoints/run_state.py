"""Where a run is: plain values, part of every checkpoint."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class RunState:
    """Counts over the whole run, and what is known of the present stage."""

    step: int = 0  # updates made, all stages together
    tokens: int = 0
    seconds: float = 0.0  # wall time, all resumptions together
    peak_bytes: int = 0
    stage: int = 0
    began: int = 0  # updates made before this stage
    began_seconds: float = 0.0
    score: float | None = None  # of the last validation
    loss: float | None = None
    best: float | None = None
    best_step: int | None = None
    reached: bool = False  # the score that the stage was waiting for
    pending: bool = False  # the validation of this step is still to be made

    @property
    def number(self) -> int:
        """Updates made in this stage."""
        return self.step - self.began

    def next_stage(self) -> RunState:
        """The beginning of the next stage."""
        return RunState(
            step=self.step,
            tokens=self.tokens,
            seconds=self.seconds,
            peak_bytes=self.peak_bytes,
            stage=self.stage + 1,
            began=self.step,
            began_seconds=self.seconds,
        )
