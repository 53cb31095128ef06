"""A run that was stopped anywhere ends in the same weights, bit by bit, and the same rows."""

import pytest
import torch
from tiny_runs import (
    Crash,
    CrashAt,
    Heard,
    assert_same_run,
    examples,
    one_stage,
    two_stages,
    weights,
)

from weft.objectives import Classify
from weft.training import Shuffled, train
from weft.training import learner as learners
from weft.training.checkpoints import checkpoint as checkpoints

EVENTS = [("step", n) for n in range(1, 9)] + [("row", n) for n in range(1, 9)] + [("stage", 1)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    torch.manual_seed(0)
    train(two_stages(), folder)
    return folder


def crashed_and_resumed(folder, event, time, run=None):
    with pytest.raises(Crash):
        train(run or two_stages(), folder, CrashAt(event, time))
    train(run or two_stages(), folder)


def test_the_events_are_all_there_are(tmp_path):
    heard = Heard()
    train(two_stages(), tmp_path, heard)
    assert len(heard.steps) == len(heard.rows) == 8
    assert len(heard.stages) == 1


@pytest.mark.parametrize(("event", "time"), EVENTS)
def test_resumed_anywhere_is_bitwise_the_same(event, time, tmp_path, undisturbed):
    crashed_and_resumed(tmp_path, event, time)
    assert_same_run(undisturbed, tmp_path)


def test_resumed_many_times_is_bitwise_the_same(tmp_path, undisturbed):
    for _ in range(20):
        try:
            train(two_stages(), tmp_path, CrashAt("step", 3))
            break
        except Crash:
            continue
    assert_same_run(undisturbed, tmp_path)


def forget_random_state(monkeypatch):
    monkeypatch.setattr(torch, "set_rng_state", lambda state: None)


def forget_moments(monkeypatch):
    monkeypatch.setattr(learners, "load_state", lambda *args: None)


def forget_buffers(monkeypatch):
    real = learners.named_tensors
    monkeypatch.setattr(
        learners,
        "named_tensors",
        lambda model: {n: t for n, t in real(model).items() if not n.endswith("level")},
    )


def forget_half_a_row(monkeypatch):
    restore = learners.Learner.restore

    def without(self, found):
        restore(self, found)
        self.window.zero_()

    monkeypatch.setattr(learners.Learner, "restore", without)


def keep_old_rows(monkeypatch):
    monkeypatch.setattr("weft.training.checkpoints.run_folder.RunFolder.cut", lambda *args: None)


TWINS = [forget_random_state, forget_moments, forget_buffers, forget_half_a_row, keep_old_rows]


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.__name__)
def test_a_loop_that_forgets_is_found(twin, tmp_path, undisturbed, monkeypatch):
    # Step 5 of the second stage is not saved; its rows are there already.
    twin(monkeypatch)
    crashed_and_resumed(tmp_path, "step", 7)
    with pytest.raises(AssertionError):
        assert_same_run(undisturbed, tmp_path)


class Forgetful:
    """A loader that shuffles by how often it was asked."""

    def __init__(self):
        self.calls, self.data = 0, examples()

    def batch(self, step):
        self.calls += 1
        return Shuffled(self.data, 4, seed=1).batch(self.calls * 7)

    def __str__(self):
        return "forgetful"


def test_a_loader_with_a_memory_is_found(tmp_path):
    train(one_stage(source=Forgetful()), tmp_path / "a")
    crashed_and_resumed(tmp_path / "b", "step", 3, one_stage(source=Forgetful()))
    with pytest.raises(AssertionError):
        assert_same_run(tmp_path / "a", tmp_path / "b")


def test_what_the_caller_drew_before_changes_nothing(tmp_path, undisturbed):
    torch.manual_seed(99)
    train(two_stages(), tmp_path)
    assert_same_run(undisturbed, tmp_path)


def test_evaluating_more_often_changes_no_weight(tmp_path, undisturbed):
    train(two_stages(evaluate_every=1), tmp_path)
    one, two = weights(undisturbed), weights(tmp_path)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_an_unread_checkpoint_is_said(tmp_path, undisturbed):
    with pytest.raises(Crash):
        train(two_stages(), tmp_path, CrashAt("step", 7))
    newest = tmp_path / "checkpoints" / f"{checkpoints.steps(tmp_path / 'checkpoints')[-1]:08d}"
    (newest / "state.json").write_text("{")
    heard = Heard()
    train(two_stages(), tmp_path, heard)
    assert heard.started == 4
    assert "an older one is used" in heard.notes[0]
    assert_same_run(undisturbed, tmp_path)


def test_half_precision_resumes_bitwise(tmp_path):
    run = one_stage(Classify(), steps=6, precision="float16")
    train(run, tmp_path / "a")
    crashed_and_resumed(tmp_path / "b", "step", 5, run)
    assert_same_run(tmp_path / "a", tmp_path / "b")
