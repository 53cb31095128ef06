"""Learning curves: the mean at common steps, and panels with the lines they should have."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from markup import finite
from run_folders import full_run

from weft.report.charts import curves
from weft.report.charts import lines as charts
from weft.report.charts.palette import looks
from weft.report.read.run_folder import read_run
from weft.report.read.summary import compare


def rows(values, first=1, every=1):
    return [
        {"step": first + every * at, "seconds": 10.0 * (first + every * at), "score": value}
        for at, value in enumerate(values)
    ]


def test_the_mean_at_common_steps():
    found = curves.averaged([rows([1, 2, 3]), rows([3, 4, 5, 9])], "score")
    assert found.steps == [1, 2, 3]
    assert found.mean == [2, 3, 4]
    assert found.seconds == [10, 20, 30]
    assert (found.low, found.high) == ([1, 2, 3], [3, 4, 5])


def test_seeds_that_share_no_steps():
    found = curves.averaged([rows([1, 2, 3], every=2), rows([5, 6], first=2, every=2)], "score")
    assert found.mean == [1, 2, 3]  # the longest alone, rather than a mean of few


def test_missing_values_are_left_out():
    found = curves.averaged([rows([1, None, 3]), [{"step": None, "score": 4}]], "score")
    assert (found.steps, found.mean) == ([1, 3], [1, 3])
    assert curves.averaged([[], rows([None])], "score") is None


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return read_run(full_run(tmp_path_factory.mktemp("run"), lengths=(512, 4096), seeds=2))


@pytest.fixture(scope="module")
def found(run):
    return compare(run)


@pytest.fixture(scope="module")
def style(found):
    return looks(found.labels, ["full"])


def parsed(text):
    drawing = ElementTree.fromstring(text)
    finite(drawing)
    return drawing


def texts(drawing):
    return [e.text for e in drawing.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("width", [960, 330])
def test_learning_curves(run, found, style, width):
    drawing = parsed(curves.learning(run, found, 512, style, width))
    shown = texts(drawing)
    for heading in ("accuracy by steps", "accuracy by seconds", "loss by steps", "loss by seconds"):
        assert f"validation {heading}" in shown
    assert all(shown.count(name) == 1 for name in found.labels)  # one legend for all panels


@pytest.mark.parametrize("width", [960, 330])
def test_losses(run, found, style, width):
    drawing = parsed(curves.train_and_valid(run, found, 512, style, width))
    kinds = [e.get("class") for e in drawing.iter()]
    assert kinds.count("raw") == kinds.count("thin") == kinds.count("line") == 7
    assert 2 * wander(drawing, "thin") < wander(drawing, "raw")


def wander(drawing, kind):
    """How far the lines of a kind go up and down, in pixels."""
    heights = [
        [float(point.split()[1]) for point in e.get("d")[1:].split("L")]
        for e in drawing.iter()
        if e.get("class") == kind
    ]
    return sum(np.abs(np.diff(own)).sum() for own in heights)


@pytest.mark.parametrize("width", [960, 330])
def test_lengths(found, style, width):
    drawing = parsed(charts.scaling(found, style, width))
    assert "peak memory (log)" in texts(drawing)
    hints = [e.text for e in drawing.iter("{http://www.w3.org/2000/svg}title")]
    assert hints.count("full at 4,096: out of memory") == 3


def test_groups_add_up_over_seeds(run):
    own = [row for row in run.groups if row["label"] == "bigbird" and row["length"] == 512]
    right, count = charts.group_lines(run, 512)["bigbird"]["30"]
    assert count == 400
    assert right == sum(row["right"] for row in own if row["group"] == "30")


def test_by_group(run, found, style):
    drawing = parsed(charts.by_group(run, found, 512, style, 960))
    bars = [e for e in drawing.iter() if e.get("class") == "bar"]
    assert len(bars) == 7 * 8


def test_every_head_is_counted(run, found, style):
    drawing = parsed(charts.spans(run, found, 512, style, 960))
    hints = [e.text for e in drawing.iter("{http://www.w3.org/2000/svg}title")]
    heads = [int(text.split(": ")[1].split()[0]) for text in hints if text.startswith("layer")]
    assert sum(heads) == 3 * 2 * 16  # mechanisms, seeds, heads
    mean = np.mean([s["span"] for s in run.spans if (s["label"], s["length"]) == ("full", 512)])
    assert f"mean {mean:.3g}" in texts(drawing)
