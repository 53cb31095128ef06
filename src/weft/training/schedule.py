"""Learning rates: warm-up times a shape. t counts updates from 1, w = warmup, T = steps.

    constant   base · min(1, t/w)
    rsqrt      base · min(1, t/w) / √max(t, w)                    Long Range Arena's; peak base/√w
    cosine     base · min(1, t/w) · (f + (1 − f) · ½(1 + cos πp))
    linear     base · min(1, t/w) · (f + (1 − f) · (1 − p))

p runs from 0 to 1 between the end of warm-up and T; the first `hold` of that way p stays 0. With
`cycles` = k the cosine falls k times, each time from the top. f is `final`.
"""

from __future__ import annotations

import math

from weft.training.settings import TrainingSettings


def learning_rate(settings: TrainingSettings, t: int) -> float:
    """The rate of update t, from 1."""
    rise = min(1.0, t / settings.warmup) if settings.warmup else 1.0
    return settings.lr * rise * _shape(settings, t)


def _shape(settings: TrainingSettings, t: int) -> float:
    if settings.schedule == "constant":
        return 1.0
    if settings.schedule == "rsqrt":
        return 1.0 / math.sqrt(max(t, settings.warmup, 1))
    p = _way(settings, t)
    if settings.schedule == "cosine":
        turns = p * settings.cycles
        # The end of a fall belongs to it, not to the next one.
        within = turns - max(0, math.ceil(turns) - 1)
        fall = 0.5 * (1.0 + math.cos(math.pi * within))
    else:
        fall = 1.0 - p
    return settings.final + (1.0 - settings.final) * fall


def _way(settings: TrainingSettings, t: int) -> float:
    """How far the fall has come at update t: 0 to 1."""
    start = settings.warmup + settings.hold * (settings.steps - settings.warmup)
    if t <= start or start >= settings.steps:
        return 0.0
    return min(1.0, (t - start) / (settings.steps - start))
