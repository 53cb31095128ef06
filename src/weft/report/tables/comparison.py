"""The tables of a comparison: scores, costs, failures, published figures, every cell, settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.metrics import metric
from weft.report.charts.scales import clock, plain, signed
from weft.report.page.document import DataTable, TableCell
from weft.report.page.headline import with_spread
from weft.report.read.fields import label, length, number
from weft.report.read.run_folder import RunFiles
from weft.report.read.statistics import Estimate
from weft.report.read.summary import Summaries, Summary
from weft.report.tables.table import byte_count
from weft.rows import Row

Column = tuple[str, Callable[[Summary], str]]
_TARGET = "Time to target: training time until validation reached the target, which is what dense "
_TARGET += "attention reached unless another was given."
_CALIBRATION = "Calibration error: mean gap between how sure predictions are and how often they "
_CALIBRATION += "are right (15 bins); lower is better."
_PEAK = "Peak memory: the allocator's peak on a GPU, the growth of the process on a CPU."


def score_table(found: Summaries) -> DataTable:
    """Mean ± std over seeds, best bold and second underlined, trivial rules below."""
    columns: list[Column] = [
        ("against dense", lambda s: _against(s, found)),
        ("validation", lambda s: with_spread(s.valid)),
        ("training", lambda s: with_spread(s.train)),
        ("macro F1", lambda s: with_spread(s.macro_f1)),
        ("calibration error", lambda s: with_spread(s.calibration_error)),
        ("time to target", lambda s: clock(s.to_target.mean) if s.to_target else "–"),
    ]
    kept = [column for column in columns if _any(column, found)]
    if found.split == "validation":
        kept = [column for column in kept if column[0] != "validation"]
    rows: list[list[TableCell]] = []
    sections = {}
    for n in found.lengths:
        if len(found.lengths) > 1:
            sections[len(rows)] = f"{n:,} tokens"
        sign = 1 if found.lower_is_better else -1
        own = found.at(n)
        marks = _ranks([sign * s.score.mean if s.score else None for s in own])
        for s, mark in zip(own, marks, strict=True):
            shown = with_spread(s.score) if s.score else _status(s)
            cells = [_name(s), TableCell(shown, mark or ("" if s.score else "faint"))]
            rows.append([*cells, *(TableCell(form(s)) for _, form in kept), _seeds(s)])
        rows += _rule_rows(found.rules(n), len(kept))
    if found.rules(None):
        sections[len(rows)] = "trivial rules"
    rows += _rule_rows(found.rules(None), len(kept), named=False)
    head = ["mechanism", f"{found.split} {found.metric}", *(name for name, _ in kept), "seeds"]
    arrow = metric(found.metric).direction
    notes = [_TARGET] if any(name == "time to target" for name, _ in kept) else []
    if any(name == "calibration error" for name, _ in kept):
        notes.append(_CALIBRATION)
    sampled = next((s for s in found.summaries if s.sampled_from), None)
    if sampled is not None and sampled.rows:
        notes.append(
            f"Scored on a sample of {sampled.rows:,.0f} of {sampled.sampled_from or 0:,.0f} test "
            "rows, so that scoring keeps to the minutes."
        )
    said = f"{found.metric.capitalize()}, {arrow}; mean ± standard deviation over seeds"
    return DataTable(head, rows, said, sections, notes)


def _rule_rows(rules: dict[str, float], empty: int, named: bool = True) -> list[list[TableCell]]:
    return [
        [
            TableCell(f"{name} (trivial rule)" if named else name, "faint", number=False),
            TableCell(f"{value:.3f}", "faint"),
            *[TableCell("")] * (empty + 1),
        ]
        for name, value in rules.items()
    ]


def _any(column: Column, found: Summaries) -> bool:
    return any(column[1](s) != "–" for s in found.summaries)


def _name(s: Summary) -> TableCell:
    return TableCell(f"{s.label} (dense)" if s.dense else s.label, number=False)


def _status(s: Summary) -> str:
    return ", ".join(dict.fromkeys(s.statuses)) or "no score"


def _seeds(s: Summary) -> TableCell:
    done = s.score.n if s.score else 0
    return TableCell(str(done) if done == s.cells else f"{done} of {s.cells}")


def _against(s: Summary, found: Summaries) -> str:
    dense = next((o for o in found.summaries if o.dense and o.length == s.length), None)
    if s.dense or not (dense and dense.score and s.score):
        return "–"
    return signed(s.score.mean - dense.score.mean)


def cost_table(found: Summaries) -> DataTable:
    """Speed, memory, size and work, each also relative to dense attention."""
    columns: list[tuple[str, Callable[[Summary], str], Callable[[Summary], float | None]]] = [
        ("steps/s", lambda s: _mean(s.speed, _three), lambda s: None),
        ("× dense", lambda s: _times(s.speed_ratio), lambda s: _minus(s.speed_ratio)),
        ("tokens/s", lambda s: _mean(s.tokens, plain), lambda s: None),
        ("peak memory", lambda s: _mean(s.memory, byte_count), lambda s: None),
        ("× dense", lambda s: _times(s.memory_ratio), lambda s: s.memory_ratio),
        ("parameters", lambda s: _mean(s.parameters, plain), lambda s: None),
        ("× dense", lambda s: _times(s.parameters_ratio), lambda s: None),
        ("FLOPs/token", lambda s: _mean(s.flops, plain), lambda s: None),
    ]
    kept = [c for c in columns if any(c[1](s) != "–" for s in found.summaries)]
    rows: list[list[TableCell]] = []
    sections = {}
    for n in found.lengths:
        if len(found.lengths) > 1:
            sections[len(rows)] = f"{n:,} tokens"
        own = sorted(found.at(n), key=lambda s: -(s.speed.mean if s.speed else -1.0))
        marks = [_ranks([order(s) for s in own]) for _, _, order in kept]
        for at, s in enumerate(own):
            cells = [TableCell(kept[c][1](s), marks[c][at]) for c in range(len(kept))]
            rows.append([_name(s), *cells])
    head = ["mechanism", *(name for name, _, _ in kept)]
    return DataTable(head, rows, _timing(found), sections, [_PEAK] if "peak memory" in head else [])


def _timing(found: Summaries) -> str:
    if found.interleaved:
        return "Steps/s: median of interleaved rounds in one process"
    return "Steps/s: median of a cell's training steps after warm-up, mean over seeds"


def _ranks(values: Sequence[float | None]) -> list[str]:
    """Marks of the smallest and the second smallest value."""
    known = sorted({value for value in values if value is not None})
    if len(known) < 2:
        return [""] * len(values)
    return ["best" if v == known[0] else "second" if v == known[1] else "" for v in values]


def _mean(value: Estimate | None, form: Callable[[float], str]) -> str:
    return form(value.mean) if value else "–"


def _three(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _times(ratio: float | None) -> str:
    return f"{ratio:.2f}×" if ratio is not None else "–"


def _minus(ratio: float | None) -> float | None:
    return -ratio if ratio is not None else None


def failure_table(run: RunFiles) -> DataTable:
    """Cells that are not done, grouped by reason."""
    groups: dict[tuple[str, int, str, str], list[str]] = {}
    for row in run.failed:
        reason = str(row.get("reason") or "no reason was recorded")
        key = (label(row), length(row), str(row.get("status")), reason)
        groups.setdefault(key, []).append(str(row.get("seed", "–")))
    rows = [
        [
            TableCell(name, number=False),
            TableCell(f"{n:,}" if n else "–"),
            TableCell(", ".join(seeds), number=False),
            TableCell(status, number=False),
            TableCell(reason, number=False),
        ]
        for (name, n, status, reason), seeds in groups.items()
    ]
    return DataTable(["mechanism", "tokens", "seeds", "what happened", "reason"], rows)


def published_table(run: RunFiles, found: Summaries) -> DataTable:
    """Published figures and ours."""
    ours = {name: s for s in found.at(found.main_length or 0) for name in (s.mixer, s.label)}
    rows = []
    for row in run.published:
        own = ours.get(str(row.get("label") or row.get("mixer")))
        note = " · ".join(str(row[key]) for key in ("source", "note") if row.get(key))
        score = number(row, "score")
        rows.append(
            [
                TableCell(label(row), number=False),
                TableCell(f"{score:.3f}" if score is not None else "–"),
                TableCell(with_spread(own.score if own else None)),
                TableCell(note, number=False),
            ]
        )
    return DataTable(["mechanism", "published", "ours", "source"], rows)


def cell_table(run: RunFiles) -> DataTable:
    """Every cell, as it is in rows.jsonl."""
    forms: tuple[tuple[str, str, Callable[[float], str]], ...] = (
        ("test", "test_score", "{:.4f}".format),
        ("validation", "valid_score", "{:.4f}".format),
        ("steps", "steps", "{:,.0f}".format),
        ("time", "train_seconds", clock),
        ("steps/s", "steps_per_second", _three),
        ("memory", "peak_bytes", byte_count),
    )
    rows = []
    for row in run.rows:
        values = [(number(row, key), form) for _, key, form in forms]
        cells = [TableCell(form(v) if v is not None else "–") for v, form in values]
        named = [TableCell(label(row), number=False), TableCell(f"{length(row):,}")]
        rows.append(
            [
                *named,
                TableCell(str(row.get("seed", "–"))),
                TableCell(_ended(row), number=False),
                *cells,
            ]
        )
    head = ["mechanism", "tokens", "seed", "status", *(name for name, _, _ in forms)]
    return DataTable(head, rows)


def _ended(row: Row) -> str:
    return str(row.get("status", "done"))
