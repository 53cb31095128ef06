"""Grids: what they hold, their labels, and their rows."""

import json

import pytest
from small_grids import BASE, TASK, ended, grid

from weft.arena.experiment.settings import Experiment, Recipe, with_mixer
from weft.arena.grid import engine as engines
from weft.arena.grid.compare import GridOptions, compare
from weft.arena.grid.grid import Grid, contenders, numbers, read_grid, sized, with_dense, write_grid
from weft.arena.grid.measure import MEASURES, seconds_to, with_targets
from weft.arena.tasks import TASKS, ListOps
from weft.errors import WeftError
from weft.rows import append, read


def test_dense_is_always_there():
    assert list(grid("fnet").contenders) == ["full", "fnet"]
    assert list(grid("fnet, full").contenders) == ["full", "fnet"]
    assert grid("fnet").dense == "full"
    with pytest.raises(WeftError, match="add the mixer 'full'"):
        Grid(contenders=contenders(Recipe(experiment=BASE), "fnet"))


def test_labels_are_short_and_unlike():
    found = grid("sliding_window(window=3), sliding_window(window=5), fnet, fnet")
    specs = ["sliding_window(window=3)", "sliding_window(window=5)"]
    assert list(found.contenders) == ["full", *specs, "fnet"]
    names = [cell.name for cell in found.cells()]
    assert len(set(names)) == 4
    assert not any(set(name) & set("()/, ") for name in names)


def test_a_name_alone_means_what_the_recipe_says():
    own = with_mixer(Experiment(task=TASK), "longformer(window=5)")
    recipe = Recipe(experiment=BASE, mixers={"longformer": own})
    assert contenders(recipe, "longformer")["longformer"] is own
    assert contenders(recipe, "longformer(window=7)")["longformer"] == with_mixer(
        BASE, "longformer(window=7)"
    )


def test_the_unfused_form_is_a_case_of_its_own():
    found = with_dense({}, BASE, unfused=True)
    cells = Grid(contenders=found).cells()
    assert [(c.label, c.dense, c.experiment.unfused) for c in cells] == [
        ("full", True, False),
        ("full, unfused", False, True),
    ]


def test_seeds_come_one_after_another_and_lengths_change_the_task():
    base = Experiment(task="listops(length=2000)", model=BASE.model)
    found = Grid(contenders=with_dense({}, base), seeds=(0, 1), lengths=(256, 512))
    cells = [(c.seed, c.length, c.experiment.training.seed) for c in found.cells()]
    assert cells == [(0, 256, 0), (0, 512, 0), (1, 256, 1), (1, 512, 1)]
    assert found.cells()[1].experiment.task == ListOps(length=512)


def test_a_task_without_a_length_says_so():
    with pytest.raises(WeftError, match="key_value has no setting 'length' to change to 99"):
        sized(TASKS.parse(TASK), 99)


@pytest.mark.parametrize("text", ["12,x", "", "1.5"])
def test_lengths_are_numbers(text):
    with pytest.raises(WeftError, match="separated by commas"):
        numbers(text, "lengths")


def test_a_folder_has_one_grid(tmp_path):
    one = grid("fnet", seeds=(0, 1), target=0.5)
    write_grid(tmp_path, one, "weft compare")
    write_grid(tmp_path, one, "another command")
    assert read_grid(tmp_path) == one
    with pytest.raises(WeftError) as caught:
        write_grid(tmp_path, grid("fnet, linformer", seeds=(0, 1), target=0.6))
    assert "target: 0.5 there, 0.6 now" in str(caught.value)
    assert "contenders.linformer: absent there" in str(caught.value)
    with pytest.raises(WeftError, match=r"has no grid\.json"):
        read_grid(tmp_path / "none")


def test_every_row_has_every_key():
    done, failed = (
        ended(cell, status)
        for cell, status in zip(grid("fnet").cells(), ("done", "failed"), strict=True)
    )
    assert list(done) == list(failed)
    assert set(MEASURES) <= set(done)
    assert ended(grid().cells()[0], loss=float("nan"))["loss"] is None


def test_pandas_reads_the_rows_in_one_call(tmp_path):
    pandas = pytest.importorskip("pandas", reason="reads rows as a user would")
    cells = grid("fnet, linformer").cells()
    rows = [ended(cells[0], test_score=0.5), *(ended(cell, "failed") for cell in cells[1:])]
    append(tmp_path / "rows.jsonl", rows)
    table = pandas.read_json(tmp_path / "rows.jsonl", lines=True)
    assert list(table.columns) == list(rows[0])
    assert list(table["status"]) == ["done", "failed", "failed"]
    assert table["test_score"].notna().tolist() == [True, False, False]


def test_time_to_accuracy(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    scores = [(1, 0.2), (2, None), (3, 0.5), (4, 0.4), (5, 0.9)]
    rows = [{"kind": "valid", "seconds": s, "score": v} for s, v in scores]
    append(metrics, [{"kind": "train", "seconds": 0, "score": 1.0}, *rows])
    times = [seconds_to(metrics, aim, "accuracy") for aim in (0.2, 0.45, 0.9, 0.95)]
    assert times == [1, 3, 5, None]
    assert seconds_to(metrics, 0.3, "bits per byte") == 1
    assert seconds_to(tmp_path / "none.jsonl", 0.1, "accuracy") is None


def test_the_target_is_what_every_dense_run_reached(tmp_path):
    cells = grid("fnet", seeds=(0, 1)).cells()
    scores = {("full", 0): 0.8, ("full", 1): 0.6, ("fnet", 0): 0.7, ("fnet", 1): 0.5}
    rows = [ended(cell, valid_score=scores[cell.label, cell.seed]) for cell in cells]
    for row in rows:
        best = row["valid_score"]
        append(
            tmp_path / row["cell"] / "metrics.jsonl",
            [{"kind": "valid", "seconds": 10 * s, "score": best * s / 4} for s in (1, 2, 3, 4)],
        )
    found = with_targets(rows, tmp_path, None)
    assert {row["target"] for row in found} == {0.6}
    times = {(row["label"], row["seed"]): row["seconds_to_target"] for row in found}
    assert times == {("full", 0): 30, ("full", 1): 40, ("fnet", 0): 40, ("fnet", 1): None}
    assert {row["target"] for row in with_targets(rows, tmp_path, 0.1)} == {0.1}
    assert [row["target"] for row in with_targets(rows[1:2], tmp_path, None)] == [None]


class Unstarted:
    """Stands for the process of a cell, where none should be needed."""

    def __init__(self, cell, *_, **__):
        raise AssertionError(f"{cell.name} was started")


def test_what_has_ended_is_not_run_again(tmp_path, monkeypatch):
    """A row, or a result that no one lived to write down, is enough."""
    monkeypatch.setattr(engines, "CellProcess", Unstarted)
    one = grid("fnet")
    dense, other = one.cells()
    write_grid(tmp_path, one)
    append(tmp_path / "rows.jsonl", [ended(dense, valid_score=0.5)])
    place = tmp_path / "cells" / other.name
    place.mkdir(parents=True)
    result = {"status": "failed", "reason": "why", "measured": {"parameters": 3}}
    (place / "result.json").write_text(json.dumps(result))
    for _ in range(2):
        found = compare(one, tmp_path)
        assert found.finished
        rows = read(tmp_path / "rows.jsonl")
        assert {row["label"]: row["status"] for row in rows} == {"full": "done", "fnet": "failed"}
        assert rows[1]["parameters"] == 3
    with pytest.raises(AssertionError, match="fnet-15-0 was started"):
        compare(one, tmp_path, GridOptions(retry=True))
    assert [row["label"] for row in read(tmp_path / "rows.jsonl")] == ["full"]


def test_two_grids_do_not_share_a_folder(tmp_path):
    from weft.files import locked

    with (
        locked(tmp_path / ".lock", wait=False),
        pytest.raises(WeftError, match="another comparison"),
    ):
        compare(grid(), tmp_path)
