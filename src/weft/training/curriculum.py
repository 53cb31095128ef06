"""Curricula: phases in which lengths, windows and tasks grow and the learning rate falls.

A `Phase` names what differs from the run's settings, as a settings file does; a phase of a run of
weft.training is made from it with `phase.over(settings)` and `phase.reshape(model)`. Weights go
from phase to phase (`weft.training.checkpoints.transfer`).

`LONGFORMER` is the curriculum of Longformer's character models: five phases, each with twice the
window and about twice the length of the one before, at half its learning rate. The paper, section
4.2 and appendix: https://arxiv.org/abs/2004.05150
"""

from __future__ import annotations

import dataclasses
from typing import Any

from weft.config import changed, config
from weft.errors import WeftError
from weft.mixers import MixerConfig
from weft.objectives import ObjectiveConfig
from weft.training.settings import Schedule, TrainingSettings


@config
class Phase:
    """What differs in one phase; None: nothing."""

    name: str = ""
    steps: int | None = None
    minutes: float | None = None  # for this phase alone
    lr: float | None = None
    schedule: Schedule | None = None
    warmup: int | None = None
    batch: int | None = None
    accumulate: int | None = None
    evaluate_every: int | None = None
    hold: float | None = None
    frozen: tuple[str, ...] | None = None  # parameters that stay as they are
    length: int | None = None  # longest sequence
    # Another mixer, or settings to change: {"window": 512}.
    mixer: MixerConfig | tuple[MixerConfig, ...] | dict[str, Any] | None = None
    model: dict[str, Any] | None = None  # settings of the model to change: read by the arena
    task: str | dict[str, Any] | None = None  # a spec, or settings to change: read by the arena
    objective: ObjectiveConfig | None = None  # e.g. "masked_lm" first; None: that of the run
    until: float | None = None  # go on early when validation reaches this score

    def over(self, settings: TrainingSettings) -> TrainingSettings:
        """The settings of this phase; minutes of the run are not those of a phase."""
        own = {field.name for field in dataclasses.fields(TrainingSettings)}
        given = {name: getattr(self, name) for name in own if hasattr(self, name)}
        changed = {name: value for name, value in given.items() if value is not None}
        return dataclasses.replace(settings, **{"minutes": None, **changed})

    def reshape(self, model: Any) -> Any:
        """The model's config with this phase's length and mixer."""
        trunk = model.trunk
        stack, frame = trunk.stack, trunk.stack.frame
        if self.length is not None:
            frame = dataclasses.replace(frame, length=self.length)
        mixer = stack.mixer if self.mixer is None else changed_mixer(stack.mixer, self.mixer)
        stack = dataclasses.replace(stack, frame=frame, mixer=mixer)
        return dataclasses.replace(model, trunk=dataclasses.replace(trunk, stack=stack))


def changed_mixer(mixer: Any, change: Any) -> Any:
    """Another mixer, or the same one (or each of several) with other settings."""
    if not isinstance(change, dict):
        return change
    if isinstance(mixer, tuple):
        return tuple(changed_mixer(each, change) for each in mixer)
    return changed(mixer, change)


def doubling(
    *,
    windows: tuple[int, ...],
    lengths: tuple[int, ...],
    lr: float,
    steps: tuple[int, ...],
    batches: tuple[int, ...],
) -> tuple[Phase, ...]:
    """Phases in which the window of every layer doubles and the rate halves, from phase to phase.

    Each warms up for a tenth of its steps, at most 10,000, and then keeps its rate.
    """
    if not len(lengths) == len(steps) == len(batches):
        raise WeftError(
            "lengths, steps and batches have one entry per phase; "
            f"got {len(lengths)}, {len(steps)} and {len(batches)}"
        )
    return tuple(
        Phase(
            name=f"{length} tokens",
            steps=count,
            lr=lr / 2**phase,
            schedule="constant",
            warmup=min(count // 10, 10_000),
            batch=batch,
            length=length,
            mixer={"window": tuple(window * 2**phase for window in windows)},
        )
        for phase, (length, count, batch) in enumerate(zip(lengths, steps, batches, strict=True))
    )


# The small model of 12 layers. The paper gives the windows at both ends, 32 at the bottom and 8,192
# at the top in phase 1, 512 at the bottom in phase 5; the steps between are ours. `window` is the
# causal reach, the token itself included; one that exceeds the length means all earlier tokens.
LONGFORMER = doubling(
    windows=(32, 32, 64, 64, 128, 128, 256, 512, 1024, 2048, 4096, 8192),
    lengths=(2048, 4096, 8192, 16384, 23040),
    lr=2.5e-4,
    steps=(430_000, 50_000, 50_000, 35_000, 5_000),
    batches=(32, 32, 16, 16, 16),
)
