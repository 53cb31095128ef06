"""Every metric: direction, unit and range, in one place for objectives, arena and report.

A score is a share of right answers, or comes from the mean loss in nats. Names of metrics that weft
does not know (rows of others) are read as scores that rise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MetricName = Literal[
    "accuracy",
    "bits per byte",
    "bits per pixel",
    "token accuracy",
    "exact match",
    "mean squared error",
]


@dataclass(frozen=True)
class Metric:
    """What a number of this name means."""

    rising: bool = True  # more is better
    share: bool = False  # runs from 0 to 1
    unit: str = ""  # of one number, for axes and sentences

    @property
    def direction(self) -> str:
        """For people."""
        return "higher is better" if self.rising else "lower is better"


_SHARE = Metric(share=True)
METRICS: dict[str, Metric] = {
    "accuracy": _SHARE,
    "token accuracy": _SHARE,
    "exact match": _SHARE,
    "macro F1": _SHARE,
    "calibration error": Metric(rising=False, share=True),
    "bits per byte": Metric(rising=False, unit="bits"),
    "bits per pixel": Metric(rising=False, unit="bits"),
    "mean squared error": Metric(rising=False),
    "loss": Metric(rising=False, unit="nats"),
    "perplexity": Metric(rising=False),
}


def metric(name: str) -> Metric:
    """What is known of a metric."""
    return METRICS.get(name, Metric())


def higher_is_better(name: str) -> bool:
    """The direction of a score."""
    return metric(name).rising


def sign(name: str) -> int:
    """1 where more is better, else −1: `sign · score` rises with quality."""
    return 1 if metric(name).rising else -1
