"""`--fast`: what a GPU gains by, and nothing that an experiment cannot do."""

import pytest
import torch

from weft.arena.experiment import fast
from weft.arena.experiment.settings import experiment
from weft.errors import WeftError

CLS = {"layers": 1, "dim": 16, "heads": 2, "registers": 1, "pool": "first"}


def one(mixer="full", task="listops(length=60)", model=CLS, **more):
    training = {"device": "cuda", "prefetch": 2}
    return experiment({"task": task, "mixer": mixer, "model": model, "training": training} | more)


@pytest.fixture
def _gpu(monkeypatch):
    monkeypatch.setattr(fast, "device_named", torch.device)


@pytest.mark.usefixtures("_gpu")
def test_a_head_that_reads_one_register_is_trimmed():
    before = one()
    found = fast.for_speed(before)
    assert found.model.head.trimmed
    training = found.training
    assert (training.precision, training.compile, training.graph) == ("bfloat16", True, True)
    assert training.prefetch == 4
    assert (training.steps, training.lr, found.mixer) == (
        *(before.training.steps, before.training.lr),
        before.mixer,
    )


@pytest.mark.usefixtures("_gpu")
@pytest.mark.parametrize(
    "whole",
    [
        one(model=CLS | {"pool": "mean"}),
        one(model=CLS | {"registers": 0}),
        one(model=CLS | {"feedforward": "switch(experts=2)"}),
        one(phase=[{"steps": 5}]),
    ],
    ids=["mean", "no register", "experts", "phases"],
)
def test_where_all_rows_are_needed_all_are_computed(whole):
    assert not fast.for_speed(whole).model.head.trimmed
    assert fast.for_speed(whole).training.graph


@pytest.mark.usefixtures("_gpu")
def test_a_mechanism_that_changes_between_updates_is_not_recorded():
    found = fast.for_speed(one("performer(features=8)"))
    assert not found.training.graph
    assert found.training.compile
    never = fast.for_speed(one("performer(features=8, redraw_every=0)"))
    assert never.training.graph, "directions that stay can be recorded"


def test_a_cpu_gains_nothing():
    on_a_cpu = experiment({"task": "listops(length=60)", "training": {"device": "cpu"}})
    with pytest.raises(WeftError, match="leave --fast out"):
        fast.for_speed(on_a_cpu)
