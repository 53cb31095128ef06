"""The summary in words; differences within the spread over seeds are called so."""

from __future__ import annotations

from collections.abc import Sequence

from weft.metrics import metric
from weft.report.page.document import KeyFigures, Paragraph, Points, Tile
from weft.report.read.run_folder import RunFiles
from weft.report.read.statistics import Estimate
from weft.report.read.summary import Summaries, Summary
from weft.report.tables.table import byte_count

FEW_UPDATES = 100  # that teach next to nothing
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
    ranked = _ranked(found)
    if not ranked:
        return [_nothing(run)]
    return [KeyFigures(_tiles(found, ranked)), Points(sentences(run, found))]


def _ranked(found: Summaries) -> list[Summary]:
    n = found.main_length
    return [s for s in found.at(n) if s.score] if n is not None else []


def sentences(run: RunFiles, found: Summaries) -> list[Paragraph]:
    """What came out; that nothing was learned, first of all."""
    if not (ranked := _ranked(found)):
        return [_nothing(run)]
    main = [_best(found, ranked), _value(found, ranked), *_others(found, ranked)]
    rules = _rules(found, ranked)
    # If nothing was learned, that is said first.
    first = rules if len(_below_rule(found, ranked)) == len(ranked) else []
    every = [*first, *main, *([] if first else rules), *_sizes(ranked), *_failures(run)]
    return [sentence for sentence in every if sentence]


def _nothing(run: RunFiles) -> Paragraph:
    ended = f"{len(run.rows)} cells ended" if len(run.rows) != 1 else "One cell ended"
    text = f"{ended} without a score."
    return Paragraph(text if run.rows else "No cell has finished.", "No result yet.")


def _best(found: Summaries, ranked: Sequence[Summary]) -> Paragraph:
    best, score = ranked[0], ranked[0].score
    assert score
    seeds = f" over {score.n} seeds" if score.n > 1 else " with one seed"
    where = f" at {best.length:,} tokens" if len(found.lengths) > 1 else ""
    if len(ranked) == 1:
        text = f"reaches {with_spread(score)} {found.metric} on {found.split} data{seeds}"
        only = " It is the only mechanism with a score." if len(found.labels) > 1 else ""
        return Paragraph(f"{text}{where} ({metric(found.metric).direction}).{only}", best.label)
    tied, close = _tied(ranked), found.close_to(best)
    if len(tied) > 1:
        text = f"{listed([s.label for s in tied])} reach the same {found.split} {found.metric}"
        text += f"{where}: {with_spread(score)}{seeds}."
        close = [s for s in close if s not in tied]
        names = [f"{s.label} ({with_spread(s.score)})" for s in close]
        verb = "does" if len(close) == 1 else "do"
        more = f" {listed(names)} {verb} not clearly differ from that." if close else ""
        return Paragraph(f"{text}{more}", "A tie.")
    text = f"has the best {found.split} {found.metric}{where}: {with_spread(score)}{seeds}."
    second = ranked[1]
    assert second.score
    if close:
        names = [f"{s.label} ({with_spread(s.score)})" for s in close]
        verb = "is" if len(close) == 1 else "are"
        text += f" {listed(names)} {verb} as good, {_within(best)}."
    elif found.differ(best, second) is None:
        gap = abs(score.mean - second.score.mean)
        text += f" The next, {second.label}, is {gap:.3f} behind; with one seed the spread of that "
        text += "is unknown, so small differences say nothing."
    else:
        text += f" The next, {second.label} ({with_spread(second.score)}), is clearly behind."
    return Paragraph(text, best.label)


def _tied(ranked: Sequence[Summary]) -> list[Summary]:
    """Those with exactly the best score."""
    best = ranked[0].score
    return [s for s in ranked if best and s.score and s.score.mean == best.mean]


def _within(best: Summary) -> str:
    if best.score and best.score.n > 1:
        return "within the spread of the seeds"
    return f"within what chance does in {best.rows or 0:,.0f} test rows"


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
    if len(found.labels) == 1 and not chosen.dense:
        return None  # a training by itself is compared with nothing
    if not any(s.dense for s in ranked):
        text = "has no score at this length, so speed and memory are not relative to it."
        return Paragraph(text, "Dense attention")
    if chosen.dense and len(ranked) == 1:
        return None
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
    return [s.label for s in ranked if found.beats_rules(s) is False]


def _rules(found: Summaries, ranked: Sequence[Summary]) -> list[Paragraph]:
    best, below = found.best_rule(ranked[0].length), _below_rule(found, ranked)
    if not best:
        return []
    rule = f"The best trivial rule ({best[0]}) reaches {best[1]:.3f}"
    if len(below) == len(ranked):
        alone = f"{ranked[0].label} is not" if len(ranked) == 1 else "no mechanism is"
        text = f"{rule}, and {alone} clearly better than that.{_few(ranked)}"
        return [Paragraph(text, "Nothing was learned.")]
    if not below:
        what = f"{ranked[0].label} is" if len(ranked) == 1 else "every mechanism is"
        return [Paragraph(f"{rule}: {what} better.")]
    verb = "is" if len(below) == 1 else "are"
    return [Paragraph(f"{rule}: {listed(below)} {verb} not clearly better than that.")]


def _few(ranked: Sequence[Summary]) -> str:
    """Where hardly any update was made, that is why."""
    most = max((s.updates.mean for s in ranked if s.updates), default=0.0)
    if not 0 < most < FEW_UPDATES:
        return ""
    return f" At most {most:,.0f} updates were made: too few to learn, so give more time."


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
    best, tied = ranked[0], _tied(ranked)
    who = best.label if len(tied) == 1 else f"{len(tied)} mechanisms tie"
    what = f"best {found.metric}" if len(ranked) > 1 else f"{found.split} {found.metric}"
    tiles = [Tile(what, with_spread(best.score), who)]
    learned = len(_below_rule(found, ranked)) < len(ranked)
    chosen = pick(found, best)
    if learned and found.close_to(best) and chosen.speed_ratio and not chosen.dense:
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
