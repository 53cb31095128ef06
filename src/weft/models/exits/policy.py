"""When to stop: rules that let an item leave a model after some of its layers.

After exit k a rule sees the scores of exits 1 to k and says which rows leave:

    confidence   max softmax(z_k / T_k) > threshold     one temperature per exit, fitted on held-out
                 rows by likelihood; Schwartz et al. 2020, https://arxiv.org/abs/2004.07453
    patience     the last `patience` exits each agreed with the one before; for one number instead
                 of classes, within `tolerance`; Zhou et al. 2020, https://arxiv.org/abs/2006.04152
    conformal    M_k > τ, where M_k estimates whether exit k agrees with the last one; τ is set so
                 that P(the answer is the full model's) ≥ 1 − ε; Schuster et al. 2021,
                 https://arxiv.org/abs/2104.08803

A fitted rule is again a plain config: temperatures, weights and thresholds are settings of it, so
it is written and read like any other spec. `never` runs everything.

Conformal calibration, on m rows that the fit of M did not see. "shared": s = max of M_k over the
exits that disagree with the last one, 0 if none; τ is the ⌈(1 − ε)(m + 1)⌉-th smallest s, or 1
(nobody leaves) if m is too small. A row is answered otherwise than by the full model only if
s > τ, and that has probability ≤ ε for a row exchangeable with the m. "independent": the same
for each exit by itself, with ε / (exits − 1): a union bound, for it thresholds that may differ.
Differs from the paper: M_k is a logistic regression on what the scores show.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.registry import Registry

EXITS = Registry("exit policy")
ExitConfig = Annotated[Any, EXITS]  # a config, a table or a spec string


class ExitPolicy(Protocol):
    """A config in EXITS."""

    name: str

    def leaves(self, history: Tensor) -> Tensor:
        """Scores (b, k, classes) of the exits so far -> which rows leave, (b,)."""
        ...

    def fitted(self, history: Tensor, y: Tensor) -> Any:
        """The rule fitted on held-out scores (m, exits, classes) of all exits and classes (m,)."""
        ...


@EXITS.register("never")
@dataclass(frozen=True)
class Never:
    """All layers for every row."""

    def leaves(self, history: Tensor) -> Tensor:
        """None of them."""
        return history.new_zeros(len(history), dtype=torch.bool)

    def fitted(self, history: Tensor, y: Tensor) -> Never:
        """Nothing to fit."""
        return self


@EXITS.register("confidence")
@dataclass(frozen=True)
class Confidence:
    """Exit at the first layer whose top probability exceeds the threshold."""

    threshold: float = 0.9
    temperatures: tuple[float, ...] = field(default=(), kw_only=True)  # by exit; (): all 1

    def __post_init__(self) -> None:
        if not 0.0 <= self.threshold <= 1.0:
            raise WeftError(f"threshold is a probability; got threshold={self.threshold}")
        if any(not t > 0 for t in self.temperatures):
            raise WeftError(f"temperatures are above 0; got {self.temperatures}")

    def leaves(self, history: Tensor) -> Tensor:
        """Those above the threshold; none at 1."""
        exits = history.shape[1]
        if self.temperatures and exits > len(self.temperatures):
            raise WeftError(
                f"this rule was fitted to {len(self.temperatures)} exits, and here is exit {exits}"
            )
        temperature = self.temperatures[exits - 1] if self.temperatures else 1.0
        return (history[:, -1].double() / temperature).softmax(-1).amax(-1) > self.threshold

    def fitted(self, history: Tensor, y: Tensor) -> Confidence:
        """With the temperature of each exit that makes the classes most likely."""
        fits = tuple(temperature(history[:, k], y) for k in range(history.shape[1]))
        return dataclasses.replace(self, temperatures=fits)


@EXITS.register("patience")
@dataclass(frozen=True)
class Patience:
    """Leave when the answer has not changed for a while."""

    patience: int = 6
    tolerance: float | None = field(default=None, kw_only=True)  # regression: |change| below this

    def __post_init__(self) -> None:
        if self.patience < 1 or (self.tolerance is not None and not self.tolerance > 0):
            raise WeftError(
                "patience is at least 1 and tolerance above 0; got "
                f"patience={self.patience}, tolerance={self.tolerance}"
            )

    def leaves(self, history: Tensor) -> Tensor:
        """Those whose last `patience` changes were none."""
        if self.tolerance is None:
            answers = history.argmax(-1)  # (b, k)
            same = answers[:, 1:] == answers[:, :-1]  # (b, k − 1)
        else:
            same = (history[:, 1:] - history[:, :-1]).abs().amax(-1) < self.tolerance
        if same.shape[1] < self.patience:
            return same.new_zeros(len(same))
        return same[:, -self.patience :].all(1)

    def fitted(self, history: Tensor, y: Tensor) -> Patience:
        """Nothing to fit."""
        return self


@EXITS.register("conformal")
@dataclass(frozen=True)
class Conformal:
    """Leave where agreement with the full model is guaranteed, but for a share `epsilon`."""

    epsilon: float = 0.05
    variant: Literal["shared", "independent"] = field(default="shared", kw_only=True)
    weights: tuple[tuple[float, ...], ...] = field(default=(), kw_only=True)  # of M, by exit
    thresholds: tuple[float, ...] = field(default=(), kw_only=True)  # τ, by exit

    def __post_init__(self) -> None:
        if not 0.0 < self.epsilon < 1.0:
            raise WeftError(f"epsilon is a share in (0, 1); got epsilon={self.epsilon}")

    def leaves(self, history: Tensor) -> Tensor:
        """Those whose estimated agreement exceeds the threshold of this exit."""
        exit_ = history.shape[1] - 1
        if not self.weights:
            raise WeftError(
                "a conformal rule holds for a model it was calibrated on: "
                "call policy.fitted(scores of held-out rows, their classes) first"
            )
        if exit_ >= len(self.weights):  # the last one: everyone leaves anyway
            return history.new_zeros(len(history), dtype=torch.bool)
        return self.agreement(history) > self.thresholds[exit_]

    def agreement(self, history: Tensor) -> Tensor:
        """M of the newest exit, (b,) in [0, 1]."""
        shown = evidence(history)  # (b, features)
        weights = shown.new_tensor(self.weights[history.shape[1] - 1])
        return (shown @ weights).sigmoid()

    def fitted(self, history: Tensor, y: Tensor) -> Conformal:
        """Half of the rows fit M, the others set the thresholds; the classes are not used."""
        rows, exits = history.shape[:2]
        if rows < 2 or exits < 2:
            raise WeftError(f"calibration needs 2 rows and 2 exits; got {rows} and {exits}")
        agrees = history.argmax(-1) == history[:, -1:].argmax(-1)  # (m, exits)
        half, before = rows // 2, range(1, exits)
        weights = tuple(
            logistic(evidence(history[:half, :k]), agrees[:half, k - 1]) for k in before
        )
        rule = dataclasses.replace(self, weights=weights)
        scores = torch.stack([rule.agreement(history[half:, :k]) for k in before], dim=1)
        found = conformal_thresholds(scores, agrees[half:, :-1], self.epsilon, self.variant)
        return dataclasses.replace(rule, thresholds=found)


def conformal_thresholds(
    scores: Tensor, agrees: Tensor, epsilon: float, variant: str
) -> tuple[float, ...]:
    """τ of each early exit from scores in [0, 1] and agreement, both (m, exits − 1)."""
    wrong = scores.masked_fill(agrees, 0.0)  # (m, exits − 1)
    exits = wrong.shape[1]
    if variant == "shared":
        return (quantile(wrong.amax(1), epsilon),) * exits
    return tuple(quantile(wrong[:, k], epsilon / exits) for k in range(exits))


def quantile(scores: Tensor, epsilon: float) -> float:
    """The ⌈(1 − ε)(m + 1)⌉-th smallest of m scores; 1 if there are not that many."""
    # Rounded, so that 0.95 · 20 is 19 in binary too.
    rank = math.ceil(round((1 - epsilon) * (len(scores) + 1), 9))
    return float(scores.sort().values[rank - 1]) if rank <= len(scores) else 1.0


def evidence(history: Tensor) -> Tensor:
    """What scores (b, k, classes) show of the newest exit: (b, features) in [0, 1], float64."""
    if history.shape[-1] < 2:
        raise WeftError(f"agreement is of classes, 2 or more; got {history.shape[-1]}")
    chances = history[:, -1].double().softmax(-1)  # (b, classes)
    first, second = chances.topk(2, dim=-1).values.unbind(-1)  # (b,)
    entropy = torch.special.entr(chances).sum(-1) / math.log(chances.shape[-1])
    answers = history.argmax(-1)  # (b, k)
    echo = (answers[:, :-1] == answers[:, -1:]).double().sum(1) / max(answers.shape[1] - 1, 1)
    return torch.stack((torch.ones_like(first), first, first - second, entropy, echo), dim=1)


def temperature(scores: Tensor, y: Tensor, widest: float = 100.0) -> float:
    """The T in [1 / widest, widest] that makes classes y (m,) most likely under softmax(z / T)."""
    scores = scores.double()
    given = scores.gather(1, y[:, None])[:, 0]  # (m,)
    low, high = -math.log(widest), math.log(widest)
    for _ in range(40):  # the loss is convex in 1 / T, so its slope changes sign once
        middle = (low + high) / 2
        expected = ((scores / math.exp(middle)).softmax(-1) * scores).sum(-1)  # (m,)
        # Too sure on the whole: the temperature is higher.
        low, high = (middle, high) if expected.sum() > given.sum() else (low, middle)
    return math.exp((low + high) / 2)


def logistic(inputs: Tensor, targets: Tensor, ridge: float = 1.0) -> tuple[float, ...]:
    """Weights of a logistic regression of targets (m,) on inputs (m, features), by Newton."""
    weights = inputs.new_zeros(inputs.shape[1])
    damping = ridge * torch.eye(len(weights), dtype=inputs.dtype, device=inputs.device)
    for _ in range(50):
        chance = (inputs @ weights).sigmoid()  # (m,)
        slope = inputs.T @ (chance - targets.to(inputs.dtype)) + ridge * weights
        curve = (inputs.T * (chance * (1 - chance))) @ inputs + damping
        weights = weights - torch.linalg.solve(curve, slope)
    return tuple(weights.tolist())
