"""Clocks that are set back or forth: a person, a time server, a machine that was asleep."""

import itertools
import os
import time

import pytest
from tiny_runs import Crash, CrashAt, assert_same_run, one_stage

from weft.files import locked, write_json
from weft.rows import append, read
from weft.training import train

DAY = 86_400.0


@pytest.fixture(params=[-3650 * DAY, 3650 * DAY, "both"], ids=["back", "forth", "both"])
def jumping(request, monkeypatch):
    """The wall clock jumps at every look."""
    now, calls = time.time, itertools.count(1)

    def jumped():
        step = request.param
        step = (-1) ** next(calls) * 400 * DAY if step == "both" else step * next(calls)
        return max(now() + step, 0.0)

    monkeypatch.setattr(time, "time", jumped)
    monkeypatch.setattr(time, "time_ns", lambda: int(jumped() * 1e9))
    assert abs(time.time() - now()) > DAY


def test_a_training_does_not_look_at_the_wall_clock(jumping, tmp_path):
    limited = {"minutes": 60.0, "save_minutes": 30.0, "save_every": 1}
    train(one_stage(**limited), tmp_path / "whole")
    with pytest.raises(Crash):
        train(one_stage(**limited), tmp_path / "killed", CrashAt("step", 2))
    outcome = train(one_stage(**limited), tmp_path / "killed")
    assert (outcome.status, outcome.steps) == ("done", 4)
    assert 0 <= outcome.seconds < 3600
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
    assert all(0 <= row["seconds"] < 3600 for row in read(tmp_path / "killed" / "metrics.jsonl"))


def test_a_budget_counts_time_that_passed(tmp_path, monkeypatch):
    """Its clock never goes back; here it runs a thousand times as fast."""
    clock = time.perf_counter
    start = clock()
    monkeypatch.setattr(time, "perf_counter", lambda: start + 1e6 * (clock() - start))
    outcome = train(one_stage(steps=1000, minutes=1.0), tmp_path)
    assert outcome.status == "done"
    assert outcome.steps < 1000
    assert outcome.seconds >= 60


def test_files_of_the_future_and_the_past(jumping, tmp_path):
    """Checkpoints are chosen by their step, locks by the system: dates of files say nothing."""
    run = one_stage(save_every=1)
    train(run, tmp_path / "whole")
    with pytest.raises(Crash):
        train(run, tmp_path / "run", CrashAt("step", 3))
    for number, path in enumerate(sorted((tmp_path / "run" / "checkpoints").rglob("*"))):
        os.utime(path, (DAY * (20_000 - 5_000 * number),) * 2)  # the newest is the oldest
    train(run, tmp_path / "run")
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_rows_and_locks_know_no_time(jumping, tmp_path):
    with locked(tmp_path / "a.lock", wait=False) as free:
        assert free
        with locked(tmp_path / "a.lock", wait=False) as other:
            assert not other
    append(tmp_path / "rows.jsonl", [{"a": 1}])
    os.utime(tmp_path / "rows.jsonl", (0, 0))
    append(tmp_path / "rows.jsonl", [{"a": 2}])
    assert read(tmp_path / "rows.jsonl") == [{"a": 1}, {"a": 2}]
    write_json(tmp_path / "a.json", 1)
