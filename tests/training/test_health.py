"""A loss that is not finite stops training with a diagnosis and leaves the weights alone."""

import json

import pytest
import torch
from tiny_runs import examples, one_stage, rows, stage, trunk

from weft.objectives import Classify
from weft.training import NonFinite, Run, Shuffled, train
from weft.training.checkpoints import checkpoint as checkpoints
from weft.training.health import OVERFLOWS, Health
from weft.training.learner import Learner
from weft.training.settings import TrainingSettings

BODY = "trunk.stack.sublayers.0.body.project.to_out"


def test_the_diagnosis_names_the_step_and_what_broke(tmp_path):
    run = one_stage(Classify(), steps=12, save_every=1, lr=0.02, clip=None, log_every=1)
    wound(run, at_step=5)
    with pytest.raises(NonFinite) as caught:
        train(run, tmp_path)
    text = str(caught.value)
    assert "step 6 (lr 0.02, precision float32, clip None)" in text
    assert "first output that is not finite: trunk.norm" in text
    assert "first gradient that is not finite: trunk.embedding.table" in text
    assert "largest outputs: " in text
    assert "largest gradient norms: " in text
    assert "a lower lr (now 0.02)" in text
    assert "clip=1.0" in text
    # The checkpoint before it is kept and sound; no row was written of the bad step.
    found = checkpoints.load(tmp_path / "checkpoints")
    assert found.step == 5
    assert all(t.isfinite().all() for t in found.tensors.values() if t.is_floating_point())
    assert max(row["step"] for row in rows(tmp_path)) == 5
    assert not (tmp_path / "done.json").exists()


def wound(run, at_step):
    """Make the batch of one step infinitely loud: an embedding row no other step uses."""
    data = examples(rows=8)
    source = Shuffled(data, 4, seed=1)

    class Loud:
        def batch(self, step):
            return source.batch(step)

        def __str__(self):
            return "loud"

    made = run.stages[0]
    object.__setattr__(made, "source", Loud())
    objective = Classify()
    calls = {"n": 0}

    class Wounded(Classify):
        def loss(self, model, batch, generator):
            if not model.training:
                return objective.loss(model, batch, generator)
            calls["n"] += 1
            if calls["n"] <= at_step:
                return objective.loss(model, batch, generator)
            handle = model.trunk.embedding.register_forward_hook(
                lambda m, i, out: out * 1e30 * 1e30
            )
            try:
                return objective.loss(model, batch, generator)
            finally:
                handle.remove()

    object.__setattr__(made, "objective", Wounded())


def test_it_would_stop_again_from_the_checkpoint(tmp_path):
    run = one_stage(Classify(), steps=12, save_every=1)
    wound(run, at_step=3)
    with pytest.raises(NonFinite, match="step 4 "):
        train(run, tmp_path)
    wound(run, at_step=0)
    with pytest.raises(NonFinite, match="step 4 "):
        train(run, tmp_path)


def learner(**changes) -> Learner:
    return Learner(stage(shape=trunk(dropout=0.0), **changes), 0, torch.device("cpu"))


def poison(made: Learner) -> None:
    """Spoil one gradient of the next update, as an overflow does."""
    parameter = dict(made.model.named_parameters())[BODY + ".weight"]
    handle = parameter.register_hook(lambda grad: (handle.remove(), grad * float("inf"))[1])


def test_updates_are_left_out_from_the_first_bad_one_on():
    """So a GPU that is asked only now and then still has the weights from before."""
    made = learner()
    batch = made.stage.source.batch(0)
    made.step(batch, 0, 0)
    before = {name: p.clone() for name, p in made.model.named_parameters()}
    poison(made)
    made.step(batch, 1, 1)
    made.step(batch, 2, 2)
    assert all(torch.equal(before[name], p) for name, p in made.model.named_parameters())
    assert made.health.first_bad_step() == 1
    with pytest.raises(NonFinite, match="step 2 "):
        made.check(made.stage.source.batch, 0)


def test_without_the_guard_the_weights_would_be_lost(monkeypatch):
    monkeypatch.setattr(Health, "broken", property(lambda self: torch.zeros(())))
    made = learner()
    poison(made)
    made.step(made.stage.source.batch(0), 0, 0)
    assert not all(p.isfinite().all() for p in made.model.parameters())


def test_an_overflow_in_float16_is_skipped_and_the_scale_halved():
    made = learner(precision="float16")
    batch = made.stage.source.batch(0)
    made.step(batch, 0, 0)
    scale = made.scaler.get_scale()
    before = {name: p.clone() for name, p in made.model.named_parameters()}
    poison(made)
    made.step(batch, 1, 1)
    assert all(torch.equal(before[name], p) for name, p in made.model.named_parameters())
    assert made.scaler.get_scale() == scale / 2
    assert made.health.first_bad_step() is None
    made.step(batch, 2, 2)
    assert any(not torch.equal(before[name], p) for name, p in made.model.named_parameters())
    assert int(made.health.overflows) == 0


def test_overflows_that_repeat_are_an_error():
    made = learner(precision="float16")
    batch = made.stage.source.batch(0)
    for step in range(OVERFLOWS):
        assert made.health.first_bad_step() is None
        poison(made)
        made.step(batch, step, step)
    assert made.health.first_bad_step() == OVERFLOWS - 1
    with pytest.raises(NonFinite, match="precision='bfloat16', which has the range"):
        made.check(made.stage.source.batch, 0)


def test_an_infinite_loss_with_finite_gradients_is_seen():
    health = Health(torch.device("cpu"), TrainingSettings())
    health.watch(3, torch.tensor(float("inf")), torch.tensor(1.0))
    assert health.first_bad_step() == 3
    health.watch(4, torch.tensor(float("nan")), torch.tensor(1.0))
    assert health.first_bad_step() == 3


def test_a_row_of_overflows_is_json(tmp_path):
    run = one_stage(Classify(), steps=2, precision="float16", log_every=1)
    made = run.stages[0]

    class Loud(Classify):
        def loss(self, model, batch, generator):
            loss = Classify().loss(model, batch, generator)
            return loss._replace(total=loss.total * (1e30 * 1e30 if model.training else 1.0))

    object.__setattr__(made, "objective", Loud())
    train(Run(stages=(made,)), tmp_path)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    assert first["loss"] is None
    assert first["grad_norm"] is None
