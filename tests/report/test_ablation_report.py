"""The report of an ablation: ranks, differences beyond the noise, the correlation, the drawing."""

import json
import random
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.report import write_report
from weft.report.charts.dots import Dot, dot_plot
from weft.report.page.ablation import ablation_table, published_pairs, ranked
from weft.report.read.statistics import ranks, spearman, spearman_interval
from weft.rows import append


def row(label, loss, std=0.01, **given):
    found = {"label": label, "early_loss": loss, "early_std": std, "base": label == "base"}
    found |= {"steps": 100, "seeds": 3, "metric": "bits per byte", "parameters": 12_000}
    found |= {"change": f"{label} = 1", "published_source": "a study"}
    return {**found, **given}


ROWS = [
    row("base", 2.0, 0.01, published_early=2.18),
    row("better", 1.9, 0.02, published_early=2.13),
    row("same", 1.99, 0.01, published_early=2.19),
    row("worse <b>", 2.5, 0.3, published_early=2.4),
    row("much worse", 2.7, 0.01, published_early=2.5),
    row("alone", 2.6, None),
    row("dead", None, None, status="failed", reason="RuntimeError: no luck", seeds=0),
]


def test_what_is_beyond_the_noise():
    found = {own.label: own for own in ranked(ROWS)}
    assert list(found) == ["better", "same", "base", "worse <b>", "alone", "much worse"]
    # 2·√(s² + s_base²): 0.045, 0.028, 0.600, unknown, 0.028
    beyond = {name: own.beyond for name, own in found.items()}
    assert beyond == {
        **{"better": True, "same": False, "base": None},
        **{"worse <b>": False, "alone": None, "much worse": True},
    }
    assert found["better"].difference == pytest.approx(-0.1)


def test_the_table_is_ranked_and_says_who_failed():
    grid = ablation_table(ROWS)
    lines = [[cell.text for cell in line] for line in grid.rows]
    assert [line[0] for line in lines][-2:] == ["much worse", "dead"]
    assert lines[0][:3] == ["better", "1.900 ± 0.020", "−0.100"]
    assert lines[-1][1] == "failed"
    place = list(grid.header).index("against base")
    marked = [line[0].text for line in grid.rows if line[place].mark == "best"]
    assert marked == ["better", "much worse"]
    assert "steps/s" not in grid.header, "nothing was timed"


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=12))
def test_ranks_and_their_correlation_are_numpys(pairs):
    a, b = ([float(v) for v in side] for side in zip(*pairs, strict=True))
    expected = []
    for side in (a, b):
        order = np.array(side)
        expected.append([np.mean(np.flatnonzero(np.sort(order) == value)) + 1 for value in order])
    assert ranks(a) == expected[0]
    if len(set(a)) > 1 and len(set(b)) > 1:
        assert spearman(a, b) == pytest.approx(np.corrcoef(*expected)[0, 1])
    else:
        assert spearman(a, b) == 0.0


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    """Pairs of normal numbers with a known correlation, many times."""
    generator = random.Random(0)
    truth, inside = 0.6, 0
    rho = 6 / np.pi * np.arcsin(truth / 2)  # Spearman's of a binormal pair
    for _ in range(200):
        a = [generator.gauss(0, 1) for _ in range(30)]
        b = [truth * x + (1 - truth**2) ** 0.5 * generator.gauss(0, 1) for x in a]
        low, high = spearman_interval(spearman(a, b), 30)
        inside += low <= rho <= high
    assert 180 <= inside <= 199
    assert spearman_interval(0.5, 3) == (-1.0, 1.0)
    assert spearman_interval(1.0, 9) == (1.0, 1.0)


def test_pairs_are_those_that_both_have():
    pairs = published_pairs(ranked(ROWS))
    assert [name for name, _, _ in pairs] == ["better", "same", "base", "worse <b>", "much worse"]


@pytest.mark.parametrize("width", [330, 960])
def test_the_dots_stand_in_order_within_the_drawing(width):
    dots = [Dot(f"m{i}", 1.0 + i / 10, 0.05, "c1", "") for i in range(12)]
    drawn = dot_plot(dots, (1.5, 0.1), "loss", width, "losses")
    places = [float(x) for x in re.findall(r'class="mark" cx="([\d.]+)"', drawn)]
    assert places == sorted(places)
    assert len(places) == 12
    assert 0 < places[0] < places[-1] < width
    assert 'class="rule"' in drawn


def test_the_whole_report(tmp_path):
    cells = [{"label": r["label"], "length": 64, "seed": 0, "status": "done"} for r in ROWS[:-1]]
    cells += [{"label": "dead", "length": 64, "seed": 0, "status": "failed", "reason": "no luck"}]
    append(tmp_path / "rows.jsonl", [{**cell, "task_spec": "language"} for cell in cells])
    (tmp_path / "grid.json").write_text(json.dumps({"command": "weft ablate x --out y"}))
    append(tmp_path / "ablation.jsonl", ROWS)
    page = write_report(tmp_path)
    html, text = page.read_text(), page.with_suffix(".md").read_text()
    assert "Which modification helps on language?" in html
    assert "worse &lt;b&gt;" in html
    assert "<b>" not in html
    ours = [1.9, 1.99, 2.0, 2.5, 2.7]
    theirs = [2.13, 2.19, 2.18, 2.4, 2.5]
    rho = np.corrcoef(np.argsort(np.argsort(ours)), np.argsort(np.argsort(theirs)))[0, 1]
    assert f"{rho:+.2f} over 5 models" in html
    for part in (
        "Better than the base:** better.",
        "Not judged:** alone. With one seed",
        "Not distinguishable",
        "weft ablate x --out y",
    ):
        assert part in text
    assert (tmp_path / "report" / "ablation.svg").read_text().startswith("<svg")
    assert "no luck" in text


def test_one_seed_judges_nothing(tmp_path):
    rows = [row("base", 2.0, None), row("lower", 1.9, None), row("higher", 2.1, None)]
    cells = [{"label": r["label"], "length": 64, "seed": 0, "status": "done"} for r in rows]
    append(tmp_path / "rows.jsonl", [{**cell, "task_spec": "language"} for cell in cells])
    append(tmp_path / "ablation.jsonl", rows)
    text = write_report(tmp_path).with_suffix(".md").read_text()
    assert "Not judged:** lower and higher. With one seed no difference" in text
    assert "Better than the base" not in text
    assert "within the noise" not in text
