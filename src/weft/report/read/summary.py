"""Cells grouped by mechanism and length, for tables, charts and sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from weft.metrics import clearly_better, metric, standard_error
from weft.report.read.fields import label, length, number
from weft.report.read.run_folder import RunFiles
from weft.report.read.statistics import Estimate, differ, estimate
from weft.rows import Row

CHANCE = 1.96  # standard errors
_RULE = re.compile(r"(.*) \(([\d,]+) tokens\)")


@dataclass(frozen=True)
class Summary:
    """One mechanism at one length, over its seeds."""

    label: str
    mixer: str
    length: int
    dense: bool
    cells: int  # all, also those that failed
    score: Estimate | None
    valid: Estimate | None
    train: Estimate | None
    speed: Estimate | None  # steps per second
    tokens: Estimate | None  # tokens per second
    memory: Estimate | None  # bytes
    parameters: Estimate | None
    flops: Estimate | None  # per token, forward and backward
    to_target: Estimate | None  # seconds
    macro_f1: Estimate | None
    calibration_error: Estimate | None
    rows: float | None  # of the test split that were scored
    sampled_from: float | None  # rows of the test split, where a sample was scored
    updates: Estimate | None
    statuses: tuple[str, ...]  # of the cells that are not done
    speed_ratio: float | None = None  # dense is 1; more is faster
    memory_ratio: float | None = None  # dense is 1; less is smaller
    parameters_ratio: float | None = None


@dataclass(frozen=True)
class Summaries:
    """All summaries of a run, and what they are measured in."""

    metric: str
    split: str  # which scores are compared: "test" or "validation"
    summaries: list[Summary]
    baselines: dict[str, float]
    interleaved: bool  # speeds were measured in turns in one process

    @property
    def lengths(self) -> list[int]:
        """Ascending."""
        return sorted({s.length for s in self.summaries})

    @property
    def labels(self) -> list[str]:
        """Dense first, then as they appear."""
        first = sorted(self.summaries, key=lambda s: not s.dense)
        return list(dict.fromkeys(s.label for s in first))

    @property
    def lower_is_better(self) -> bool:
        """The direction of the metric."""
        return not metric(self.metric).rising

    def at(self, n: int) -> list[Summary]:
        """The summaries of one length, best first; those without a score at the end."""
        return self.ranked(s for s in self.summaries if s.length == n)

    def ranked(self, summaries: Iterable[Summary]) -> list[Summary]:
        """Best first."""
        sign = 1 if self.lower_is_better else -1
        return sorted(
            summaries, key=lambda s: (s.score is None, sign * s.score.mean if s.score else 0.0)
        )

    def better(self, a: float, b: float) -> bool:
        """Whether score a beats score b."""
        return a < b if self.lower_is_better else a > b

    def rules(self, n: int | None) -> dict[str, float]:
        """Trivial rules of one length, named `rule (4,096 tokens)`; None: those of any length."""
        named = {name: _RULE.fullmatch(name) for name in self.baselines}
        if n is None:
            return {name: self.baselines[name] for name, own in named.items() if not own}
        own = {name: m for name, m in named.items() if m and m[2].replace(",", "") == str(n)}
        return {m[1]: self.baselines[name] for name, m in own.items()}

    def best_rule(self, n: int) -> tuple[str, float] | None:
        """The best trivial rule at a length."""
        pick = min if self.lower_is_better else max
        found = {**self.rules(None), **self.rules(n)}
        return pick(found.items(), key=lambda item: item[1]) if found else None

    @property
    def main_length(self) -> int | None:
        """The longest length at which most mechanisms have a score: the headline is about it."""
        scored = {n: sum(s.score is not None for s in self.at(n)) for n in self.lengths}
        most = max(scored.values(), default=0)
        return max((n for n, count in scored.items() if count == most), default=None)

    def close_to(self, best: Summary) -> list[Summary]:
        """Other mechanisms of its length whose score does not clearly differ from the best.

        By the spread over seeds; with one seed, by what chance does in the rows that were scored.
        """
        others = [s for s in self.at(best.length) if s.label != best.label]
        return [s for s in others if self.differ(best, s) is False]

    def differ(self, a: Summary, b: Summary) -> bool | None:
        """Whether two scores differ beyond chance; None where that is not known."""
        if not (a.score and b.score):
            return None
        by_seeds = differ(a.score, b.score)
        gap = abs(a.score.mean - b.score.mean)
        if by_seeds is not None or not (a.rows and b.rows):
            return by_seeds if by_seeds is not None or gap else False
        parts = [
            standard_error(self.metric, s.score.mean, s.rows or 0) ** 2 for s in (a, b) if s.score
        ]
        error = sum(parts) ** 0.5
        return (gap > CHANCE * error) if error or not gap else None

    def beats_rules(self, s: Summary) -> bool | None:
        """Whether a mechanism is clearly better than every trivial rule; None: there is none."""
        rules = {**self.rules(None), **self.rules(s.length)}
        if not rules or not s.score:
            return None
        return clearly_better(self.metric, s.score.mean, rules, s.rows or 0, s.score.std or 0.0)


def compare(run: RunFiles) -> Summaries:
    """Group the cells of a run."""
    done = run.done
    has_test = any(number(row, "test_score") is not None for row in done)
    timed = {(label(row), length(row)): row for row in run.speed if _steps(row) is not None}
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in run.rows:
        groups.setdefault((label(row), length(row)), []).append(row)
    found = [_summary(key, own, has_test, timed.get(key)) for key, own in groups.items()]
    metrics = [str(row["metric"]) for row in run.rows if row.get("metric")]
    return Summaries(
        metric=metrics[0] if metrics else "score",
        split="test" if has_test or not done else "validation",
        summaries=[_relative(s, found) for s in found],
        baselines=run.baselines,
        interleaved=bool(timed),
    )


def _summary(
    key: tuple[str, int], cells: Sequence[Row], has_test: bool, timed: Row | None
) -> Summary:
    done = [row for row in cells if row.get("status", "done") == "done"]

    def over(name: str) -> Estimate | None:
        return estimate(number(row, name) for row in done)

    first = cells[0]
    return Summary(
        label=key[0],
        mixer=str(first.get("mixer") or key[0]),
        length=key[1],
        dense=_is_dense(first),
        cells=len(cells),
        score=over("test_score" if has_test else "valid_score"),
        valid=over("valid_score"),
        train=over("train_score"),
        speed=estimate([_steps(timed)]) if timed else over("steps_per_second"),
        tokens=over("tokens_per_second"),
        # Where a process did not grow, there is no measurement.
        memory=estimate(number(row, "peak_bytes") or None for row in done),
        parameters=over("parameters"),
        flops=over("flops_per_token"),
        to_target=over("seconds_to_target"),
        macro_f1=over("macro_f1"),
        calibration_error=over("calibration_error"),
        rows=_least(done, "test_rows") if has_test else None,
        sampled_from=_sampled(done) if has_test else None,
        updates=over("steps"),
        statuses=tuple(str(row.get("status")) for row in cells if row not in done),
    )


def _least(rows: Sequence[Row], key: str) -> float | None:
    known = [value for row in rows if (value := number(row, key))]
    return min(known, default=None)


def _sampled(rows: Sequence[Row]) -> float | None:
    """Rows of the test split, where fewer were scored."""
    whole, scored = _least(rows, "test_rows_whole"), _least(rows, "test_rows")
    return whole if whole and scored and scored < whole else None


def _is_dense(row: Row) -> bool:
    return bool(row["dense"]) if row.get("dense") is not None else label(row) == "full"


def _steps(row: Row | None) -> float | None:
    """Steps per second of a row of speed.jsonl, given as such or as seconds per step."""
    if row is None:
        return None
    seconds = number(row, "median_s") or number(row, "step_seconds")
    return number(row, "steps_per_second") or (1 / seconds if seconds else None)


def _relative(own: Summary, every: Sequence[Summary]) -> Summary:
    """The summary with its ratios to dense attention at its length."""
    dense = next((s for s in every if s.dense and s.length == own.length), None)
    if dense is None:
        return own
    return replace(
        own,
        speed_ratio=_ratio(own.speed, dense.speed),
        memory_ratio=_ratio(own.memory, dense.memory),
        parameters_ratio=_ratio(own.parameters, dense.parameters),
    )


def _ratio(own: Estimate | None, dense: Estimate | None) -> float | None:
    return own.mean / dense.mean if own and dense and dense.mean else None
