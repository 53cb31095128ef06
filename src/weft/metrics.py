"""Every metric: direction, unit and range, in one place for objectives, arena and report.

A score is a share of right answers, or comes from the mean loss in nats. Names of metrics that weft
does not know (rows of others) are read as scores that rise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

MetricName = Literal[
    "accuracy",
    "bits per byte",
    "bits per pixel",
    "bits per dimension",
    "token accuracy",
    "exact match",
    "mean squared error",
    "gini",
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
    "gini": Metric(),  # from −1 to 1
    "AUC": _SHARE,
    "calibration error": Metric(rising=False, share=True),
    "bits per byte": Metric(rising=False, unit="bits"),
    "bits per pixel": Metric(rising=False, unit="bits"),
    "bits per dimension": Metric(rising=False, unit="bits"),  # of a byte of a colour picture
    "mean squared error": Metric(rising=False),
    "mean absolute error": Metric(rising=False),
    "root mean squared error": Metric(rising=False),
    "R²": Metric(),
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


def bits(nats: float, items: float = 1.0) -> float:
    """A loss in nats over so many items as bits per item: of a colour picture's bytes, bits/dim."""
    return nats / (math.log(2) * items)


def auc_error(area: float, positives: float, negatives: float) -> float:
    """The standard error of an area under a ROC curve, by Hanley and McNeil; of Gini twice that."""
    one, two = area / (2 - area), 2 * area**2 / (1 + area)
    total = area * (1 - area)
    total += (positives - 1) * (one - area**2) + (negatives - 1) * (two - area**2)
    return math.sqrt(max(total, 0.0) / (positives * negatives))


def standard_error(name: str, score: float, count: float) -> float:
    """Of a share of right answers, or a Gini, among so many rows; 0 for other metrics.

    How many rows of a Gini are positive is not known here: it is that of two classes of equal size,
    and unequal ones err more.
    """
    if name == "gini" and count >= 2:
        return 2 * auc_error((score + 1) / 2, count / 2, count / 2)
    if not metric(name).share or count <= 0:
        return 0.0
    return math.sqrt(max(score * (1 - score), 0.0) / count)


def best_of(name: str, scores: Mapping[str, float]) -> tuple[str, float]:
    """The best of some scores, with its key."""
    return max(scores.items(), key=lambda item: sign(name) * item[1])


def clearly_better(
    name: str, score: float, rules: Mapping[str, float], count: float, spread: float = 0.0
) -> bool:
    """Whether a score beats every trivial rule by more than chance in so many rows explains.

    `spread` is the standard deviation over seeds, where there is one.
    """
    _, rule = best_of(name, rules)
    margin = max(spread, 2 * standard_error(name, rule, count))
    return sign(name) * (score - rule) > margin
