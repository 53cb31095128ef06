"""Signals are noted, not obeyed; handlers come back; an interrupted validation is made later."""

import os
import signal
import threading

import pytest
from tiny_runs import Heard, assert_same_run, one_stage, rows, two_stages

from weft.training import train
from weft.training.interrupt import Interrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_noted(number):
    before = signal.getsignal(number)
    with Interrupt() as interrupt:
        assert interrupt.requested is None
        os.kill(os.getpid(), number)
        assert interrupt.requested == number.name
    assert signal.getsignal(number) is before


def test_other_threads_have_no_handlers():
    found = []

    def inside():
        with Interrupt() as interrupt:
            found.append(interrupt.requested)

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert found == [None]


class SignalAt(Heard):
    def __init__(self, step):
        super().__init__()
        self.at = step

    def step(self, step):
        super().step(step)
        if step == self.at:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("step", [3, 4, 8])
def test_an_interrupted_run_says_so_and_goes_on(step, tmp_path):
    train(two_stages(), tmp_path / "a")
    heard = SignalAt(step)
    outcome = train(two_stages(), tmp_path / "b", heard)
    assert (outcome.status, outcome.reason, outcome.steps) == ("interrupted", "SIGTERM", step)
    assert heard.outcomes == [outcome]
    assert train(two_stages(), tmp_path / "b").status == "done"
    assert_same_run(tmp_path / "a", tmp_path / "b")


class Slow:
    """A validation split during which the signal comes."""

    def __init__(self, source, strike):
        self.source, self.strike, self.passes = source, strike, 0

    def __str__(self):
        return "slow"

    def __iter__(self):
        self.passes += 1
        for number, batch in enumerate(self.source):
            if (self.passes, number) == (self.strike, 1):
                os.kill(os.getpid(), signal.SIGINT)
            yield batch


def test_a_signal_during_a_validation_stops_it_and_it_is_made_later(tmp_path):
    def run(strike):
        made = one_stage(log_every=1)
        object.__setattr__(made.stages[0], "valid", Slow(made.stages[0].valid, strike))
        return made

    train(run(0), tmp_path / "a")
    outcome = train(run(1), tmp_path / "b")
    assert (outcome.status, outcome.steps) == ("interrupted", 2)
    assert [row["step"] for row in rows(tmp_path / "b") if row["kind"] == "valid"] == []
    # Interrupted once more, while the validation is made up for.
    assert train(run(1), tmp_path / "b").steps == 2
    heard = Heard()
    assert train(run(0), tmp_path / "b", heard).status == "done"
    assert heard.steps == [3, 4]
    assert_same_run(tmp_path / "a", tmp_path / "b")
