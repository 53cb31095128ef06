"""Plots: the lines are the rows."""

import sys

import pytest
from bench_rows import row, some_rows

from weft.errors import WeftError
from weft.report import plot_bench
from weft.report.charts.plots import draw_bench, draw_curriculum, draw_learning


def lines_of(axes):
    return {
        line.get_label(): list(zip(*map(list, line.get_data()), strict=True))
        for line in axes.get_lines()
    }


def test_the_lines_are_the_rows():
    figure = draw_bench(some_rows())
    forward, both, memory = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "forward",
        "forward + backward",
        "peak memory of forward + backward",
    ]
    found = lines_of(forward)
    assert found["dense (SDPA)"] == [(1024, 0.004), (4096, 0.064)]
    assert found["longformer"] == [(1024, 0.001), (4096, 0.0042)]
    assert found["sliding(window=8) | keys(first=1), core"] == [(4096, 0.002)]
    assert "fnet" not in found
    assert lines_of(both) == {"dense (SDPA)": [(1024, 0.010)], "longformer": [(1024, 0.015)]}
    assert lines_of(memory) == {"dense (SDPA)": [(4096, 3 * 2**20)]}
    assert all(axes.get_xscale() == axes.get_yscale() == "log" for axes in figure.axes)
    assert {text.get_text() for text in figure.legends[0].get_texts()} == set(found)


def test_a_file_is_whole_or_absent(tmp_path):
    path = tmp_path / "new" / "bench.png"
    plot_bench(some_rows(), path)
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert [p.name for p in path.parent.iterdir()] == ["bench.png"]
    plot_bench(some_rows(), path.with_suffix(".svg"))
    assert "<svg" in path.with_suffix(".svg").read_text()[:1000]


def test_what_cannot_be_plotted(tmp_path):
    with pytest.raises(WeftError, match=r"\.png or \.svg"):
        plot_bench(some_rows(), tmp_path / "bench.txt")
    with pytest.raises(WeftError, match="no row holds a number"):
        plot_bench([row("full", 64, error="broken")], tmp_path / "bench.png")


def test_without_matplotlib_the_way_out_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(WeftError, match=r"pip install matplotlib"):
        plot_bench(some_rows(), tmp_path / "bench.png")


def test_a_curriculum_shows_both_curves_and_every_phase():
    rows = [
        {"kind": "train", "phase": 0, "seconds": 30, "accuracy": 0.5},
        {"kind": "valid", "phase": 0, "seconds": 60, "score": 0.9},
        {"kind": "train", "phase": 1, "seconds": 150, "accuracy": 0.6},
        {"kind": "valid", "phase": 1, "seconds": 180, "score": 0.8},
    ]
    (axes,) = draw_curriculum(rows, ["short paths", "long paths"]).axes
    curves = {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}
    assert curves["training batches"] == [[0.5, 0.5], [2.5, 0.6]]
    assert curves["validation"] == [[1, 0.9], [3, 0.8]]
    assert {"1  short paths", "2  long paths"} <= curves.keys()
    assert [(shade.get_x(), shade.get_width()) for shade in axes.patches] == [(0, 1), (1, 2)]


def test_learning_has_a_panel_for_each_task_and_a_line_for_each_mechanism():
    points = [("a", "full", 10, 0.1), ("a", "full", 20, 0.3), ("a", "fnet", 10, 0.2)]
    points += [("b", "fnet", 5, 0.4)]
    rows = [{"task": t, "label": m, "step": n, "score": y} for t, m, n, y in points]
    figure = draw_learning(rows)
    first, second = figure.axes
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["full", "fnet"]
    assert [first.get_title(), second.get_title()] == ["a", "b"]
    lines = {line.get_label(): line for line in first.get_lines()}
    assert {k: line.get_xydata().tolist() for k, line in lines.items()} == {
        "full": [[10, 0.1], [20, 0.3]],
        "fnet": [[10, 0.2]],
    }
    (only,) = second.get_lines()
    assert only.get_color() == lines["fnet"].get_color(), "a mechanism keeps its colour"


def test_no_two_mechanisms_are_drawn_alike():
    rows = [
        {"task": "a", "label": f"m{i}", "step": s, "score": 0.1} for i in range(20) for s in (1, 2)
    ]
    (axes,) = draw_learning(rows).axes
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.get_lines()}) == 20
