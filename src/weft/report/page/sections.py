"""The sections of a report; one without data is left out, or says why in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from weft.metrics import metric
from weft.report.charts import curves
from weft.report.charts import lines as charts
from weft.report.charts.bubbles import bubbles, drawable
from weft.report.charts.dots import Dot, dot_plot
from weft.report.charts.palette import Look
from weft.report.page.document import Block, Chart, Gallery, Paragraph, Section
from weft.report.page.headline import headline, listed
from weft.report.read.run_folder import RunFiles
from weft.report.read.summary import Summaries
from weft.report.tables import comparison as tables


@dataclass(frozen=True)
class Material:
    """What all sections are made from."""

    run: RunFiles
    found: Summaries
    looks: dict[str, Look]

    @property
    def n(self) -> int:
        """The length that charts of a single length show; 0 where no row has one."""
        return self.found.main_length or 0

    @property
    def where(self) -> str:
        """That length, where there are several."""
        return f"{self.n:,} tokens. " if len(self.found.lengths) > 1 else ""


def answer(m: Material) -> Section:
    """The summary in words."""
    return Section("answer", "The answer", headline(m.run, m.found))


def trade_off(m: Material) -> Section | None:
    """The bubble chart."""
    every, shown = m.found.at(m.n), drawable(m.found.at(m.n))
    title = "Quality, speed and memory"
    if not any(s.score for s in every):
        return None
    if not shown:
        text = "No cell has both a score and a speed, so there is no chart of them."
        return Section("trade-off", title, [Paragraph(text)])
    if len(every) == 1:
        return None  # `standing` says more about one mechanism
    left_out = [s.label for s in every if s not in shown]
    note = f" Not drawn, without a score or a speed: {listed(left_out)}." if left_out else ""
    better = f"{m.found.metric.capitalize()}: {metric(m.found.metric).direction}"
    better += ", so the axis is reversed" if m.found.lower_is_better else ""
    caption = (
        f"{m.where}{better}; the best are on top, the fastest on the right. The area of a circle "
        f"is its peak memory; bars are one standard deviation over seeds.{note}"
    )
    alt = f"{m.found.metric} against speed; the area of a circle is memory"
    return _with_chart(
        "trade-off", title, alt, caption, lambda w: bubbles(m.found, m.n, m.looks, w)
    )


def standing(m: Material) -> Section | None:
    """A single mechanism: its scores, and those of trivial rules."""
    every = m.found.at(m.n)
    if len(every) != 1 or not every[0].score:
        return None
    own, better = every[0], metric(m.found.metric)
    named = ((m.found.split, own.score), ("validation", own.valid), ("training", own.train))
    known = {name: value for name, value in named if value}
    dots = [Dot(name, v.mean, v.std, "c0", f"{name}: {v.mean:.4f}") for name, v in known.items()]
    rules = {**m.found.rules(None), **m.found.rules(m.n)}
    dots += [
        Dot(name, value, None, "noise", f"{name}: {value:.4f}") for name, value in rules.items()
    ]
    if len(dots) < 2:
        return None
    dots.sort(key=lambda dot: dot.value, reverse=better.rising)
    caption = f"{better.direction[:1].upper()}{better.direction[1:]}; the best is on top."
    caption += " Hollow: trivial rules, which learn nothing." if rules else ""
    unit = f", {better.unit}" if better.unit else ""
    name, alt = f"{m.found.metric}{unit}", f"{m.found.metric} beside that of trivial rules"
    return _with_chart(
        "standing", "How good", alt, caption, lambda w: dot_plot(dots, None, name, w, alt)
    )


def _with_chart(
    key: str, title: str, alt: str, caption: str, draw: Callable[[int], str]
) -> Section:
    return Section(key, title, [_chart(key, alt, caption, draw)])


def _chart(name: str, alt: str, caption: str, draw: Callable[[int], str]) -> Chart:
    """Cached: the page and the Markdown show the same drawing."""
    return Chart(name, alt, cache(draw), caption)


def scores(m: Material) -> Section | None:
    """The table of scores, trivial rules among them."""
    if not m.found.summaries:
        return None
    blocks: list[Block] = [tables.score_table(m.found)]
    if not m.found.baselines:
        blocks.append(Paragraph("The scores of trivial rules were not recorded with this run."))
    if m.found.split == "validation":
        blocks.append(Paragraph("There is no test score; validation scores are shown instead."))
    return Section("scores", m.found.metric.capitalize(), blocks)


def published(m: Material) -> Section | None:
    """Published figures, where the run has some."""
    if not m.run.published:
        return None
    note = "Published figures come from other code and budgets; they were not measured here."
    blocks = [tables.published_table(m.run, m.found), Paragraph(note)]
    return Section("published", "Compared with published figures", blocks)


def costs(m: Material) -> Section | None:
    """Speed, memory, parameters and work, relative to dense attention."""
    if not any(s.speed or s.memory or s.parameters for s in m.found.summaries):
        return None
    return Section("costs", "Speed, memory and size", [tables.cost_table(m.found)])


def lengths(m: Material) -> Section | None:
    """The same over several lengths."""
    if len(m.found.lengths) < 2:
        return None
    alt = "speed, memory and score over length"
    caption = "Lengths, speed and memory are on logarithmic axes. A cross: no number, see below."
    return _with_chart(
        "lengths", "Over length", alt, caption, lambda w: charts.scaling(m.found, m.looks, w)
    )


def learning(m: Material) -> Section | None:
    """Learning curves of the main length."""
    title = "Learning curves"
    if not m.found.summaries:
        return None
    own = [curve for every in curves.by_label(m.run, m.n).values() for curve in every]
    if not any(len(curve.valid) > 1 or len(curve.train) > 1 for curve in own):
        text = "The cells left no metrics of several steps, so there are no learning curves."
        return Section("learning", title, [Paragraph(text)])
    blocks = []
    if any(len(curve.valid) > 1 for curve in own):
        caption = f"{m.where}{m.found.metric.capitalize()}: {metric(m.found.metric).direction}; of "
        caption += (
            "losses, lower. Mean over seeds; the band reaches from the lowest to the highest."
        )
        alt = "validation score and loss during training"
        blocks.append(_chart("learning", alt, caption, lambda w: curves.learning(*_four(m), w)))
    caption = (
        f"Dashed: training loss, the mean of {curves.WINDOW} neighbouring points, with the raw "
        "values faint behind it. Solid: validation loss. All panels share one scale."
    )
    if len(m.found.labels) > curves.MOST_SMALL:
        caption += f" The first {curves.MOST_SMALL} mechanisms."
    alt = "training and validation loss of each mechanism"
    blocks.append(_chart("losses", alt, caption, lambda w: curves.train_and_valid(*_four(m), w)))
    return Section("learning", title, blocks)


def _four(m: Material) -> tuple[RunFiles, Summaries, int, dict[str, Look]]:
    return m.run, m.found, m.n, m.looks


def groups(m: Material) -> Section | None:
    """Accuracy by group, for tasks whose examples have groups."""
    if not any(name in m.looks for name in charts.group_lines(m.run, m.n)):
        return None
    caption = f"{m.where}Seeds pooled; bars are 95 % intervals of a binomial share (Wilson)."
    return _with_chart(
        "groups",
        "By group of examples",
        "accuracy by group",
        caption,
        lambda w: charts.by_group(*_four(m), w),
    )


def patterns(m: Material) -> Section | None:
    """Pictures of the mechanisms that are patterns."""
    if not m.run.pictures:
        return None
    order = {name: at for at, name in enumerate(m.found.labels)}
    shown = sorted(m.run.pictures, key=lambda p: order.get(p.label, len(order)))
    text = "Queries down, keys across. Mechanisms that are not patterns have no picture."
    return Section("patterns", "Patterns", [Paragraph(text), Gallery(shown)])


def spans(m: Material) -> Section | None:
    """Attention spans of trained heads."""
    rows = {name for name in charts.span_rows(m.run, m.n) if name in m.looks}
    if not rows:
        return None
    undefined = [s.label for s in m.found.at(m.n) if s.label not in rows]
    note = f" Not defined or not measured: {listed(undefined)}." if undefined else ""
    caption = (
        f"{m.where}The mean distance |i − j| weighted by attention, in trained models: one count "
        f"per head and seed, darker for later layers.{note}"
    )
    alt = "required attention span of heads"
    return _with_chart(
        "spans", "Required attention span", alt, caption, lambda w: charts.spans(*_four(m), w)
    )


def failures(m: Material) -> Section | None:
    """Cells that did not finish, and files that could not be read."""
    run = m.run
    blocks: list[Block] = [tables.failure_table(run)] if run.failed else []
    if run.unfinished:
        text = f"{listed(run.unfinished)} started and did not finish. A rerun continues from there."
        blocks.append(Paragraph(text))
    blocks += [Paragraph(sentence) for sentence in run.missing]
    if not blocks:
        return None
    return Section("failed", "What failed" if run.failed else "What is missing", blocks)
