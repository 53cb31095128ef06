"""The summary in words; differences within the spread over seeds are called so."""

from __future__ import annotations

from collections.abc import Sequence

from weft.report.page.document import KeyFigures, Paragraph, Points, Tile
from weft.report.read.run_folder import RunFiles
from weft.report.read.statistics import Estimate, differ
from weft.report.read.summary import Summaries, Summary
from weft.report.tables.table import byte_count

_DIFFERENT = 0.1  # relative difference of parameter counts that is not mentioned


def with_spread(value: Estimate | None, digits: int = 3) -> str:
    """0.431 ± 0.010; a single number has no spread."""
    if value is None:
        return "–"
    spread = f" ± {value.std:.{digits}f}" if value.std is not None else ""
    return f"{value.mean:.{digits}f}{spread}"


def listed(names: Sequence[str], most: int = 6) -> str:
    """'a', 'a and b', 'a, b and c', 'a, b and 7 more'."""
    if len(names) > most:
        names = [*names[: most - 1], f"{len(names) - most + 1} more"]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else ""


def pick(found: Summaries, best: Summary) -> Summary:
    """The fastest of those that are as good as the best."""
    equals = [best, *found.close_to(best)]
    return max(equals, key=lambda s: s.speed.mean if s.speed else 0.0)


def headline(run: RunFiles, found: Summaries) -> list[KeyFigures | Points | Paragraph]:
    """Tiles with the key figures, and sentences that explain them."""
    n = found.main_length
    ranked = [s for s in found.at(n) if s.score] if n is not None else []
    if not ranked:
        return [_nothing(run)]
    main = [_best(found, ranked), _value(found, ranked), *_others(found, ranked)]
    rules = _rules(found, ranked)
    # If nothing was learned, that is said first.
    first = rules if len(_below_rule(found, ranked)) == len(ranked) else []
    sentences = [*first, *main, *([] if first else rules), *_sizes(ranked), *_failures(run)]
    points = Points([sentence for sentence in sentences if sentence])
    return [KeyFigures(_tiles(found, ranked)), points]


def _nothing(run: RunFiles) -> Paragraph:
    ended = f"{len(run.rows)} cells ended" if len(run.rows) != 1 else "One cell ended"
    text = f"{ended} without a score, so there is nothing to compare."
    return Paragraph(text if run.rows else "No cell has finished.", "No result yet.")


def _best(found: Summaries, ranked: Sequence[Summary]) -> Paragraph:
    best, score = ranked[0], ranked[0].score
    assert score
    seeds = f" over {score.n} seeds" if score.n > 1 else " with one seed"
    where = f" at {best.length:,} tokens" if len(found.lengths) > 1 else ""
    text = f"has the best {found.split} {found.metric}{where}: {with_spread(score)}{seeds}."
    close = found.close_to(best)
    if len(ranked) == 1:
        return Paragraph(f"{text} It is the only mechanism with a score.", best.label)
    second = ranked[1]
    assert second.score
    if close:
        names = [f"{s.label} ({with_spread(s.score)})" for s in close]
        verb = "is" if len(close) == 1 else "are"
        text += f" {listed(names)} {verb} as good, within the spread of the seeds."
    elif differ(score, second.score) is None:
        gap = abs(score.mean - second.score.mean)
        text += f" The next, {second.label}, is {gap:.3f} behind; with one seed the spread of that "
        text += "is unknown, so small differences say nothing."
    else:
        text += f" The next, {second.label} ({with_spread(second.score)}), is clearly behind."
    return Paragraph(text, best.label)


def against_dense(s: Summary) -> str:
    """Speed and memory in words: '2.1× as fast as dense with 0.40 of its memory'."""
    speed = f"{s.speed_ratio:.2g}× as fast as dense" if s.speed_ratio else ""
    memory = f"{s.memory_ratio:.2f} of its memory" if s.memory_ratio else ""
    if speed and memory:
        return f"{speed} with {memory}"
    return speed or (f"takes {s.memory_ratio:.2f} of dense's memory" if memory else "")


def _value(found: Summaries, ranked: Sequence[Summary]) -> Paragraph | None:
    best = ranked[0]
    chosen = pick(found, best)
    words = against_dense(chosen)
    if not any(s.dense for s in ranked):
        text = "has no score at this length, so speed and memory are not relative to it."
        return Paragraph(text, "Dense attention")
    if chosen.dense:
        return Paragraph("reaches the best score; nothing as good is faster.", "Dense attention")
    if not words:
        return None
    if chosen is best:
        return Paragraph(f"is {words}.", best.label)
    return Paragraph(f"is the fastest of these: {words}.", chosen.label)


def _others(found: Summaries, ranked: Sequence[Summary]) -> list[Paragraph]:
    """The fastest one, where it is neither the best nor dense."""
    timed = [s for s in ranked if s.speed_ratio]
    if not timed:
        return []
    fastest = max(timed, key=lambda s: s.speed_ratio or 0.0)
    if fastest.dense or fastest.label in (pick(found, ranked[0]).label, ranked[0].label):
        return []
    text = f"is the fastest of all, {against_dense(fastest)}, and scores "
    return [Paragraph(f"{text}{with_spread(fastest.score)}.", fastest.label)]


def _below_rule(found: Summaries, ranked: Sequence[Summary]) -> list[str]:
    """Those that are not better than the best trivial rule by their spread."""
    best = found.best_rule(ranked[0].length)
    sign = 1 if found.lower_is_better else -1
    return [
        s.label
        for s in ranked
        if best
        and s.score
        and not found.better(s.score.mean + sign * (s.score.std or 0.0), best[1])
    ]


def _rules(found: Summaries, ranked: Sequence[Summary]) -> list[Paragraph]:
    best, below = found.best_rule(ranked[0].length), _below_rule(found, ranked)
    if not best:
        return []
    rule = f"The best trivial rule ({best[0]}) reaches {best[1]:.3f}"
    if len(below) == len(ranked):
        text = f"{rule}, and no mechanism is clearly better than that."
        return [Paragraph(text, "Nothing was learned.")]
    if not below:
        return [Paragraph(f"{rule}: every mechanism is better.")]
    verb = "is" if len(below) == 1 else "are"
    return [Paragraph(f"{rule}: {listed(below)} {verb} not clearly better than that.")]


def _sizes(ranked: Sequence[Summary]) -> list[Paragraph]:
    unlike = [
        f"{s.label} ({s.parameters_ratio:.2f}×)"
        for s in ranked
        if s.parameters_ratio and abs(s.parameters_ratio - 1) > _DIFFERENT
    ]
    text = f"Parameter counts differ from dense by more than 10 %: {listed(unlike)}."
    return [Paragraph(text)] if unlike else []


def _failures(run: RunFiles) -> list[Paragraph]:
    found = []
    if run.failed:
        count = f"{len(run.failed)} of {len(run.rows)} cells"
        found.append(Paragraph(f"{count} did not finish; the reasons are under “What failed”."))
    if run.unfinished:
        cells = "1 cell has" if len(run.unfinished) == 1 else f"{len(run.unfinished)} cells have"
        found.append(Paragraph(f"{cells} started and not finished."))
    return found


def _tiles(found: Summaries, ranked: Sequence[Summary]) -> list[Tile]:
    best = ranked[0]
    tiles = [Tile(f"best {found.metric}", with_spread(best.score), best.label)]
    chosen = pick(found, best)
    if found.close_to(best) and chosen.speed_ratio and not chosen.dense:
        tiles.append(Tile("as good, and faster", f"{chosen.speed_ratio:.2g}× dense", chosen.label))
    timed = [s for s in ranked if s.speed]
    fastest = max(timed, key=lambda s: s.speed.mean if s.speed else 0.0, default=best)
    if len(timed) > 1 and not (len(tiles) > 1 and fastest is chosen):
        ratio = f"{fastest.speed_ratio:.2g}× dense" if fastest.speed_ratio else ""
        assert fastest.speed
        tiles.append(Tile("fastest", ratio or f"{fastest.speed.mean:.3g} steps/s", fastest.label))
    weighed = [s for s in ranked if s.memory]
    if len(weighed) > 1:
        least = min(weighed, key=lambda s: s.memory.mean if s.memory else 0.0)
        assert least.memory
        tiles.append(Tile("least memory", byte_count(least.memory.mean), least.label))
    return tiles
