"""What fits into minutes. Seen to fail: with scores left out of the time, plans wait too long."""

import dataclasses

import numpy as np
import pytest

from weft.arena.experiment.pace import Pace, _seconds_per_row, read_pace
from weft.arena.experiment.time_plan import (
    FEW,
    LEAST_ROWS,
    TOO_FEW,
    TimePlan,
    duration,
    read_plan,
    said,
    time_plan,
    write_plan,
)
from weft.training.settings import TrainingSettings

ROWS = {"valid": 2000, "test": 2500, "train": 20_000}
ENDLESS = 10**8


def settings(**given):
    return TrainingSettings(**{"steps": ENDLESS, "schedule": "constant", "warmup": 100, **given})


def waited(plan, pace, evaluate_every=None):
    """Seconds of everything in a plan."""
    every = plan.evaluate_every or evaluate_every
    valid = ROWS["valid"] if plan.valid_rows is None else plan.valid_rows
    test = ROWS["test"] if plan.test_rows is None else plan.test_rows
    scored = valid * -(-plan.updates // every) + test + (plan.train_rows or 1000)
    return pace.start + plan.updates * pace.update + scored * pace.row


def test_all_that_is_waited_for_fits():
    draw = np.random.default_rng(0)
    for _ in range(300):
        update, row = 10 ** draw.uniform(-3, 0.7), 10 ** draw.uniform(-5, -1.7)
        check_that_it_fits(Pace(update, row, draw.uniform(0, 20), ROWS), draw.uniform(1, 60))


def check_that_it_fits(pace, minutes):
    plan = time_plan(settings(minutes=minutes), pace, spans=True)
    least = 3 * LEAST_ROWS * pace.row + 2 * pace.update  # what is done in any case
    assert waited(plan, pace) <= 60 * minutes + least
    assert plan.warmup <= max(plan.updates / 10, 0)
    assert plan.updates / plan.evaluate_every <= 10
    assert 0 < plan.reserve < 60 * minutes


def test_time_is_used():
    pace = Pace(0.1, 1e-4, 2.0, ROWS)
    plan = time_plan(settings(minutes=5), pace)
    assert waited(plan, pace) > 0.85 * 300
    assert (plan.valid_rows, plan.test_rows) == (None, None)  # scoring all of them fits


def test_contenders_are_scored_on_the_rows_that_the_slowest_can():
    fast, slow = Pace(0.05, 1e-3, 2.0, ROWS), Pace(2.0, 0.05, 2.0, ROWS)
    plans = [time_plan(settings(minutes=2), own, (fast, slow)) for own in (fast, slow)]
    for split in ("valid_rows", "test_rows", "train_rows"):
        assert getattr(plans[0], split) == getattr(plans[1], split)
    assert plans[0].updates > 10 * plans[1].updates
    assert plans[0].test_rows < ROWS["test"]


def test_steps_that_fit_are_left_alone():
    pace = Pace(0.01, 1e-5, 1.0, ROWS)
    plan = time_plan(settings(steps=100, minutes=10), pace)
    assert (plan.updates, plan.warmup, plan.valid_rows, plan.test_rows) == (100, None, None, None)
    assert time_plan(settings(steps=100), pace).seconds < 10
    own = settings(steps=100, minutes=10)
    assert plan.over(own) == own


def test_a_warm_up_that_is_too_long_is_cut():
    plan = time_plan(settings(minutes=1), Pace(1.0, 1e-3, 2.0, ROWS))
    assert plan.updates < 60
    assert plan.over(settings()).warmup == plan.updates // 10 < 100


def test_given_validations_stay():
    pace = Pace(0.1, 1e-3, 2.0, ROWS)
    plan = time_plan(settings(minutes=2, evaluate_every=50), pace)
    assert plan.evaluate_every is None
    assert waited(plan, pace, evaluate_every=50) <= 1.05 * 120


def test_a_plan_is_kept(tmp_path):
    assert read_plan(tmp_path) is None
    plan = time_plan(settings(minutes=2), Pace(0.5, 0.01, 2.0, ROWS))
    write_plan(tmp_path, plan)
    assert read_plan(tmp_path) == plan
    pace = Pace(0.5, 0.01, 2.0, ROWS)
    assert read_pace({"label": "full", **pace.as_row()}) == pace


def test_the_estimate_in_words():
    pace = Pace(1.0, 0.1, 2.0, ROWS)
    plans = [TimePlan(updates=40, seconds=240.0)] * 3
    (line,) = said(plans, [pace], "for 3 mechanisms")
    few = "about 12 minutes for 3 mechanisms; 40 updates each: too few to learn"
    assert line.startswith(few)
    some = said([*plans, TimePlan(updates=400, seconds=240.0)], [pace], "")
    assert "40 to 400 updates each: too few to learn for some; more minutes" in some[0]
    easy = said([TimePlan(updates=TOO_FEW, seconds=30.0)], [pace], "")
    assert "50 updates: few, enough for an easy task; more minutes or steps" in easy[0]
    many = [TimePlan(updates=FEW, seconds=30.0)]
    assert said(many, [pace], "for this training") == [
        "about 30 seconds for this training; 100 updates"
    ]
    assert said(plans, [pace], "", jobs=3)[0].startswith("about 4 minutes")
    sampled = [dataclasses.replace(plans[0], test_rows=64)]
    assert said(sampled, [pace], "")[1].endswith("test is scored on 64 of 2,500 rows")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.2, "1 second"), (40, "40 seconds"), (89, "89 seconds"), (95, "2 minutes"),
     (3000, "50 minutes"), (9000, "2.5 hours"), (90_000, "25 hours")],
)  # fmt: skip
def test_durations(seconds, shown):
    assert duration(seconds) == shown


def test_the_probe_stops_when_its_time_is_up(monkeypatch):
    import torch

    now, rows = [0.0], []
    monkeypatch.setattr("weft.arena.experiment.pace.time.perf_counter", lambda: now[0])

    def work(count):
        rows.append(count)
        now[0] += 0.5 * count

    assert _seconds_per_row(work, 32, torch.device("cpu"), 4.0) == pytest.approx(0.5)
    assert rows == [1, 4]  # sixteen would take too long
    rows.clear()
    assert _seconds_per_row(work, 8, torch.device("cpu"), 100.0) == pytest.approx(0.5)
    assert rows == [1, 4, 8, 8]
