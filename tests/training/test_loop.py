"""The loop: stages, rows, the best model, budgets, and how a run ends."""

import json

import pytest
import torch
from tiny_runs import (
    VOCAB,
    Crash,
    CrashAt,
    Heard,
    examples,
    one_stage,
    rows,
    settings,
    stage,
    trunk,
    weights,
)

from weft.errors import WeftError
from weft.models import load
from weft.objectives import CausalLM, Classify, MaskedLM
from weft.training import Ordered, Run, score, train


def test_the_callers_random_state_is_left_alone(tmp_path):
    before = torch.get_rng_state()
    train(one_stage(), tmp_path)
    assert torch.equal(before, torch.get_rng_state())


def test_seeds_differ(tmp_path):
    train(one_stage(seed=1), tmp_path / "a")
    train(one_stage(seed=2), tmp_path / "b")
    one, two = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert not torch.equal(one["trunk.embedding.table"], two["trunk.embedding.table"])


def test_done_is_done(tmp_path):
    first = train(one_stage(), tmp_path)
    heard = Heard()
    assert train(one_stage(), tmp_path, heard) == first
    assert heard.steps == []
    assert first.status == "done"
    assert not (tmp_path / "checkpoints").exists()


def test_another_run_in_the_folder_is_refused(tmp_path):
    train(one_stage(), tmp_path)
    with pytest.raises(WeftError, match=r"stages\[0\]\.settings\.lr: 0\.01 there, 0\.5 here"):
        train(one_stage(lr=0.5), tmp_path)


def test_what_does_not_change_the_run_may_differ(tmp_path):
    with pytest.raises(Crash):
        train(one_stage(), tmp_path, CrashAt("step", 3))
    assert train(one_stage(save_every=1, minutes=60.0), tmp_path).steps == 4


def test_a_folder_trains_one_run_at_a_time(tmp_path):
    class Inside(Heard):
        def step(self, step):
            with pytest.raises(WeftError, match="another process is training"):
                train(one_stage(), tmp_path)
            super().step(step)

    heard = Inside()
    train(one_stage(), tmp_path, heard)
    assert heard.steps == [1, 2, 3, 4]


def test_best_is_best_by_validation_and_loads(tmp_path):
    # The rate grows so large that later models are worse.
    run = one_stage(steps=12, evaluate_every=1, schedule="constant", lr=1.0, clip=None)
    outcome = train(run, tmp_path)
    valid = [row for row in rows(tmp_path) if row["kind"] == "valid"]
    best = min(valid, key=lambda row: row["score"])
    assert (outcome.best_score, outcome.best_step) == (best["score"], best["step"])
    assert outcome.best_step < 12
    assert outcome.model == "best"
    found = score(load(tmp_path / "best"), run.stages[0].valid, CausalLM())
    assert found.score == outcome.best_score
    last = score(load(tmp_path / "last"), run.stages[0].valid, CausalLM())
    assert last.score == outcome.score != outcome.best_score


def test_without_validation_the_last_model_counts(tmp_path):
    outcome = train(one_stage(valid=False), tmp_path)
    assert outcome.model == "last"
    assert outcome.score is None
    assert not (tmp_path / "best").exists()


def test_the_score_ends_a_stage_early(tmp_path):
    easy = stage(Classify(), steps=50, until=0.0, evaluate_every=2)
    outcome = train(Run(stages=(easy, stage(steps=3))), tmp_path)
    assert outcome.steps == 2 + 3
    assert [row["step"] for row in rows(tmp_path) if row["phase"] == 0][-1] == 2


def test_bits_are_reached_from_above(tmp_path):
    run = Run(stages=(stage(CausalLM(), steps=6, until=100.0), stage(CausalLM(), steps=1)))
    assert train(run, tmp_path / "a").steps == 2 + 1
    run = Run(stages=(stage(CausalLM(), steps=6, until=0.01), stage(CausalLM(), steps=1)))
    assert train(run, tmp_path / "b").steps == 6 + 1


def test_minutes_end_a_run_and_count_over_resumptions(tmp_path):
    lengthy = {"steps": 10**6, "save_every": 1, "evaluate_every": 10**6}
    with pytest.raises(Crash):
        train(one_stage(**lengthy), tmp_path, CrashAt("step", 3))
    saved = json.loads((tmp_path / "checkpoints/00000003/state.json").read_text())
    used = saved["values"]["place"]["seconds"]
    outcome = train(one_stage(**lengthy, minutes=(used + 0.2) / 60), tmp_path)
    assert outcome.status == "done"
    assert 3 < outcome.steps < 10**6
    assert outcome.seconds >= used + 0.2
    # The last step was validated.
    assert [r["step"] for r in rows(tmp_path) if r["kind"] == "valid"] == [outcome.steps]


def test_a_run_without_minutes_left_is_still_validated(tmp_path):
    lengthy = {"steps": 10**6, "save_every": 1, "evaluate_every": 10**6, "log_every": 10**6}
    with pytest.raises(Crash):
        train(one_stage(**lengthy), tmp_path, CrashAt("step", 3))
    outcome = train(one_stage(**lengthy, minutes=1e-9), tmp_path)
    assert outcome.steps == 4
    assert [(row["kind"], row["step"]) for row in rows(tmp_path)] == [("train", 4), ("valid", 4)]


def test_minutes_of_a_stage_end_the_stage_alone(tmp_path):
    first = stage(steps=10**6, minutes=1e-9)
    run = Run(stages=(first, stage(steps=2)), settings=settings())
    assert train(run, tmp_path).steps == 1 + 2


def test_minutes_of_the_run_end_it_in_any_stage(tmp_path):
    run = Run(stages=(stage(steps=2), stage(steps=2)), settings=settings(minutes=1e-9))
    outcome = train(run, tmp_path)
    assert (outcome.status, outcome.steps, outcome.phase) == ("done", 1, 0)


def test_rows_hold_means_over_their_window(tmp_path):
    """With a rate of almost 0 the model stays, so a row's loss is the mean over its batches."""
    run = one_stage(shape=trunk(dropout=0.0), steps=3, lr=1e-30, weight_decay=0.0)
    train(run, tmp_path)
    (row,) = [row for row in rows(tmp_path) if row["kind"] == "train"]
    model = load(tmp_path / "last")
    generator = torch.Generator()
    losses = [CausalLM().loss(model, run.stages[0].source.batch(s), generator) for s in range(3)]
    mean = sum(x.total.item() for x in losses) / sum(x.count.item() for x in losses)
    assert row["loss"] == pytest.approx(mean, rel=1e-6)
    assert row["tokens"] == sum(run.stages[0].source.batch(s).tokens for s in range(3))
    assert row["grad_norm"] > 0


@pytest.mark.parametrize("objective", [MaskedLM(), CausalLM()], ids=str)
def test_self_pretraining_hands_over_its_trunk(objective, tmp_path):
    """With no update in the second stage worth naming, its trunk is the first one's, bit by bit."""
    first, second = stage(objective, steps=6), stage(steps=1, lr=1e-30, weight_decay=0.0)
    heard = Heard()
    train(Run(stages=(first, second)), tmp_path / "both", heard)
    train(Run(stages=(first,)), tmp_path / "first")
    one, two = weights(tmp_path / "first"), weights(tmp_path / "both")
    for name in one:
        if name == "trunk.embedding.table":
            assert torch.equal(one[name][:VOCAB], two[name])
        else:
            assert torch.equal(one[name], two[name]), name
    ((number, note),) = heard.stages
    assert number == 1
    assert "started fresh: head.0.weight, head.0.bias" in note
    assert ("adapted: trunk.embedding.table" in note) == isinstance(objective, MaskedLM)


def test_speed_and_size_are_reported(tmp_path):
    outcome = train(one_stage(steps=6), tmp_path)
    assert outcome.steps_per_second > 0
    assert outcome.tokens_per_second > 0
    assert outcome.peak_bytes >= 0
    model = load(tmp_path / "last")
    assert outcome.parameters == sum(p.numel() for p in model.parameters())
    batches = [one_stage().stages[0].source.batch(s) for s in range(6)]
    assert outcome.tokens == sum(batch.tokens for batch in batches)


def test_parts_hold_rows_of_like_length(tmp_path):
    """Batches of four in two parts: each is as wide as its own longest row."""
    outcome = train(one_stage(steps=3, accumulate=2), tmp_path)
    places = 0
    for step in range(3):
        sizes = sorted(one_stage().stages[0].source.batch(step).valid.sum(1).tolist())
        places += 2 * sizes[1] + 2 * sizes[3]
    assert outcome.tokens == places


def test_the_test_split_is_scored_apart(tmp_path):
    train(one_stage(Classify(), steps=2), tmp_path)
    found = score(load(tmp_path / "best"), Ordered(examples(rows=13, seed=5), 4), Classify())
    assert found.count == 13


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_trains(precision, tmp_path):
    run = one_stage(Classify(), steps=40, precision=precision, lr=1e-2, data=examples(rows=64))
    outcome = train(run, tmp_path)
    losses = [row["loss"] for row in rows(tmp_path) if row["kind"] == "train"]
    assert outcome.steps == 40
    assert losses[-1] < losses[0]
    assert all(tensor.dtype == torch.float32 for tensor in weights(tmp_path).values())


def test_activation_checkpointing_changes_no_weight(tmp_path):
    train(one_stage(), tmp_path / "a")
    train(one_stage(shape=trunk(recompute="checkpoint")), tmp_path / "b")
    one, two = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo looks at it itself
def test_compiled_training_is_the_same_to_rounding(tmp_path):
    shape = trunk(dropout=0.0)
    same = {"shape": shape, "steps": 2, "precision": "float64"}
    train(one_stage(**same), tmp_path / "a")
    train(one_stage(**same, compile=True), tmp_path / "b")
    one, two = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-9, atol=1e-9)


def test_time_before_and_after_belongs_to_the_minutes(tmp_path):
    lengthy = {"steps": 10**6, "evaluate_every": 10**6, "minutes": 1.0}
    assert train(one_stage(**lengthy), tmp_path / "a", waited=60.0).steps == 1
    assert train(one_stage(**lengthy), tmp_path / "b", waited=20.0, reserve=40.0).steps == 1
    outcome = train(one_stage(**lengthy), tmp_path / "c", waited=20.0, reserve=39.7)
    assert 1 < outcome.steps < 10**6
