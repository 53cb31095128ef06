"""Phases: what they change, Longformer's five as one value, lengths that grow in training."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
import torch
from tiny_runs import CLASSES, examples, settings, trunk, weights

from weft.errors import WeftError
from weft.layers.embedding import Embedding
from weft.mixers import Frame
from weft.models import Encoder, Stack
from weft.objectives import CausalLM, Classify, Head
from weft.training import LONGFORMER, Ordered, Phase, Run, Shuffled, Stage, TrainingSettings, train
from weft.training.curriculum import changed_mixer, doubling


def test_a_phase_changes_what_it_names():
    base = TrainingSettings(steps=100, lr=0.1, batch=8, minutes=5.0, warmup=3)
    changed = Phase(steps=7, lr=0.2).over(base)
    assert (changed.steps, changed.lr, changed.batch, changed.warmup) == (7, 0.2, 8, 3)
    assert changed.minutes is None  # those are the run's
    assert Phase(minutes=2.0).over(base).minutes == 2.0


def test_longformers_five_phases():
    """The figures of the paper: https://arxiv.org/abs/2004.05150, section 4.2 and its appendix."""
    assert len(LONGFORMER) == 5
    assert [p.length for p in LONGFORMER] == [2048, 4096, 8192, 16384, 23040]
    assert [p.lr for p in LONGFORMER] == [2.5e-4, 1.25e-4, 6.25e-5, 3.125e-5, 1.5625e-5]
    assert [p.batch for p in LONGFORMER] == [32, 32, 16, 16, 16]
    assert [p.steps for p in LONGFORMER] == [430_000, 50_000, 50_000, 35_000, 5_000]
    assert [p.warmup for p in LONGFORMER] == [10_000, 5_000, 5_000, 3_500, 500]
    assert all(p.schedule == "constant" for p in LONGFORMER)
    windows = [p.mixer["window"] for p in LONGFORMER]
    assert (windows[0][0], windows[0][-1], windows[4][0]) == (32, 8192, 512)
    for one, two in pairwise(windows):
        assert [2 * w for w in one] == list(two)
    assert all(list(w) == sorted(w) for w in windows)


def test_longformers_phases_build_models():
    """The paper's 12 layers at a small width: the configs are those of the real ones."""
    frame = Frame(dim=8, heads=2, length=2048)
    first = Encoder(
        embedding=Embedding(vocab=205),
        stack=Stack(frame=frame, order="sf" * 12, mixer="longformer(global_first=0)"),
    )
    model = CausalLM().build(first)
    for phase in LONGFORMER:
        shaped = phase.reshape(model)
        assert shaped.trunk.stack.frame.length == phase.length
        assert shaped.trunk.stack.mixer.window == phase.mixer["window"]
        assert phase.over(TrainingSettings()).lr == phase.lr
        shaped.build()


def test_a_small_curriculum_trains(tmp_path):
    """Windows and lengths double, weights go on; the last phase is long, the first is short."""
    phases = doubling(windows=(2, 4), lengths=(5, 9), lr=0.01, steps=(3, 2), batches=(4, 2))
    shape = trunk(order="ss", mixer="longformer(global_first=0)", length=5)
    model, base = Classify().build(shape, Head(classes=CLASSES)), settings()
    stages = []
    for phase in phases:
        data, own = examples(length=phase.length), phase.over(base)
        stages.append(
            Stage(
                model=phase.reshape(model),
                objective=Classify(),
                source=Shuffled(data, own.batch),
                valid=Ordered(data, 4),
                settings=own,
                name=phase.name,
            )
        )
    outcome = train(Run(stages=tuple(stages)), tmp_path)
    assert outcome.steps == 5
    assert weights(tmp_path)["trunk.embedding.positions"].shape == (9, 8)


def test_the_second_phase_starts_from_the_first_ones_weights(tmp_path):
    one = Classify().build(trunk(length=5), Head(classes=CLASSES))
    still = settings(steps=1, lr=1e-30, weight_decay=0.0)
    source = Shuffled(examples(length=5), 4)
    first = Stage(model=one, objective=Classify(), source=source, settings=settings())
    last = Stage(
        model=Phase(length=10).reshape(one), objective=Classify(), source=source, settings=still
    )
    train(Run(stages=(first,)), tmp_path / "one")
    train(Run(stages=(first, last)), tmp_path / "two")
    short, long = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name in short:
        if name == "trunk.embedding.positions":
            assert torch.equal(long[name], torch.cat([short[name], short[name]]))
        else:
            assert torch.equal(long[name], short[name]), name


def test_mixers_change_by_settings_or_spec():
    model = Classify().build(trunk(mixer="longformer(window=5)"), Head())
    changed = Phase(mixer={"window": [3]}).reshape(model)
    assert changed.trunk.stack.mixer.window == (3,)
    assert changed.trunk.stack.mixer.global_first == model.trunk.stack.mixer.global_first
    assert Phase(mixer="full").reshape(model).trunk.stack.mixer.name == "full"
    assert Phase().reshape(model) == model
    both = changed_mixer((model.trunk.stack.mixer,) * 2, {"window": 9})
    assert [each.window for each in both] == [9, 9]
    with pytest.raises(WeftError, match="longformer has no setting 'windw'; did you mean 'window'"):
        Phase(mixer={"windw": 3}).reshape(model)


def test_phases_of_unequal_numbers_are_refused():
    with pytest.raises(WeftError, match="one entry per phase"):
        doubling(windows=(2,), lengths=(5, 9), lr=0.01, steps=(3,), batches=(4, 2))


def test_until_needs_a_validation():
    model = Classify().build(trunk(), Head())
    with pytest.raises(WeftError, match="needs valid="):
        Stage(model=model, objective=Classify(), source=Shuffled(examples(), 4), until=0.5)


def test_a_run_needs_a_stage():
    with pytest.raises(WeftError, match="at least one stage"):
        Run(stages=())


def test_every_setting_of_a_phase_is_one_of_settings_or_its_own():
    own = {"name", "length", "mixer", "model", "task", "objective", "until"}
    known = {field.name for field in dataclasses.fields(TrainingSettings)}
    assert {field.name for field in dataclasses.fields(Phase)} <= known | own


def test_rows_of_the_data_fit():
    assert int(np.max(examples(length=5).rows.lengths)) <= 5
