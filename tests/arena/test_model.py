"""One setting, a task and a mechanism give a model; its size is what the sizes say."""

from types import SimpleNamespace

import pytest
import torch

from weft.arena.flops import parameters
from weft.arena.model import ModelSetting
from weft.arena.runs import model_of, run_of
from weft.arena.settings import Experiment
from weft.errors import Unsupported, WeftError
from weft.feedforward import Chunked, Dense, ProductKey, Switch
from weft.models import Classifier, Decoder, Encoder, LanguageModel
from weft.objectives import Head, Match
from weft.training.curriculum import Phase
from weft.training.settings import Settings

TASK = "key_value(pairs=4, symbols=8, values=4, train=20, valid=10, test=10)"
SMALL = ModelSetting(layers=2, dim=16, heads=2, hidden=24)


def test_parameters_are_those_of_the_matrices():
    c, f, vocab, classes = 16, 24, 8 + 4 + 1, 4
    attention = 4 * (c * c + c)
    feedforward = (c * f + f) + (f * c + c)
    norms = 2 * 2 * c
    whole = vocab * c + 2 * (attention + feedforward + norms) + 2 * c + (c * classes + classes)
    config = model_of(Experiment(task=TASK, model=SMALL))
    assert parameters(config) == whole
    assert sum(p.numel() for p in config.build().parameters()) == whole


def test_the_heads_may_be_narrower_than_the_model():
    model = ModelSetting(layers=1, dim=16, heads=2, head_dim=4)
    body = model_of(Experiment(task=TASK, model=model)).build().trunk.stack.mixers[0]
    assert body.project.to_q.weight.shape == (8, 16)


@pytest.mark.parametrize(
    ("positions", "inside", "added"),
    [
        ("none", None, "none"),
        ("sinusoidal", None, "sinusoidal"),
        ("learned", None, "learned"),
        ("rope", "rope", "none"),
        ("rope(base=500.0)", "rope(base=500.0)", "none"),
        ("alibi", "alibi", "none"),
    ],
)
def test_positions_are_added_or_act_in_attention(positions, inside, added):
    model = ModelSetting(layers=1, dim=16, heads=2, positions=positions)
    trunk = model_of(Experiment(task=TASK, model=model)).trunk
    found = trunk.stack.frame.positions
    assert (found and str(found)) == inside
    assert trunk.embedding.positions == added


def feedforwards(**setting):
    """What the 'f' sublayers of a small model are."""
    model = ModelSetting(**{"layers": 4, "dim": 12, "heads": 2, **setting})
    return model.stack("full", 16).feedforwards


def test_feed_forwards_by_name():
    assert feedforwards() == (Dense(expansion=4.0),) * 4
    assert (
        feedforwards(activation="relu", hidden=24) == (Dense(activation="relu", expansion=2.0),) * 4
    )
    assert feedforwards(activation="swiglu")[0].expansion * 12 == pytest.approx(32)  # two thirds
    dense, switch = feedforwards(feedforward="dense, switch(experts=3)")[2:]
    assert dense == Dense(hidden=48)
    assert switch == Switch(experts=3, hidden=48)
    gated = feedforwards(feedforward="moe(activation='glu')", hidden=20, activation="relu")[0]
    assert (gated.activation, gated.hidden) == ("glu", 20)
    inner = feedforwards(feedforward="chunked(inner=dense, tokens=5)", activation="relu")[0]
    assert inner == Chunked(inner=Dense(activation="relu", hidden=48), tokens=5)
    assert feedforwards(feedforward="dense(expansion=3)")[0] == Dense(expansion=3)
    assert feedforwards(feedforward="product_key(keys=8, top=2)")[0] == ProductKey(keys=8, top=2)
    with pytest.raises(WeftError, match="'f' sublayers, 4; got feedforward='dense, gate, moe'"):
        feedforwards(feedforward="dense, gate, moe")


def test_depth_residual_and_order_by_name():
    model = ModelSetting(
        layers=3, dim=16, heads=2, norm="none", residual="fixup", depth="layer_drop", shared=1
    )
    stack = model.stack("full", 16)
    assert (str(stack.residual), str(stack.depth), stack.shared) == ("fixup", "layer_drop", 1)
    assert stack.norm.kind == "none"
    assert stack.order == "sfsfsf"
    assert ModelSetting(order="ssff").stack("full", 16).order == "ssff"
    universal = ModelSetting(layers=1, depth="universal(steps=3)").stack("full", 16)
    assert universal.depth.steps == 3


def test_evolved_cells_by_the_kind_of_task():
    model = ModelSetting(layers=4, dim=16, heads=2, order="evolved")
    language = SimpleNamespace(kind="language", vocab=9, length=12)
    pair = SimpleNamespace(kind="match", vocab=9, length=12)
    assert model.trunk(language, "full").stack.order == "sssf" * 2
    assert model.trunk(pair, "full").stack.order == "fssf" * 2
    assert model.trunk(pair, "fnet").stack.mixers[1].name == "fnet"


def test_kinds_of_tasks_have_their_models():
    assert isinstance(model_of(Experiment(task=TASK, model=SMALL)), Classifier)
    language = SimpleNamespace(kind="language", vocab=9, length=12)
    pair = SimpleNamespace(kind="match", vocab=9, length=12)
    assert isinstance(SMALL.trunk(language, "full"), Decoder)
    assert isinstance(SMALL.trunk(pair, "full"), Encoder)
    assert Match().build(SMALL.trunk(pair, "full"), Head(classes=3, pool="max")).classes == 3


def test_a_mechanism_that_cannot_be_causal_refuses_language():
    language = SimpleNamespace(kind="language", vocab=9, length=12)
    with pytest.raises(Unsupported, match="fnet cannot be causal"):
        SMALL.trunk(language, "fnet").build()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"layers": 0}, "layers is at least 1"),
        ({"pool": "median"}, "pool is one of mean"),
        ({"feedforward": "swich"}, "did you mean 'switch'"),
        ({"feedforward": "dense(units=3)"}, "dense has no setting 'units'"),
        ({"positions": "rop"}, "did you mean 'rope'"),
        ({"residual": "rezro"}, "did you mean 'rezero'"),
        ({"depth": "universl"}, "did you mean 'universal'"),
    ],
)
def test_a_setting_that_does_not_fit(setting, message):
    with pytest.raises(WeftError, match=message):
        ModelSetting(**setting)


def test_phases_become_stages():
    phases = (
        Phase(steps=3, objective="masked_lm(rate=0.3)", batch=4),
        Phase(steps=5, task={"pairs": 2}, mixer={"window": 3}, lr=0.5, until=0.9),
    )
    own = Experiment(
        task=TASK,
        mixer="sliding_window(window=9)",
        model=SMALL,
        training=Settings(steps=99, batch=6, seed=3),
        phases=phases,
    )
    run = run_of(own)
    first, second = run.stages
    assert isinstance(first.model, LanguageModel)
    assert (first.settings.steps, first.settings.batch, second.settings.lr) == (3, 4, 0.5)
    assert second.until == 0.9
    assert str(first.model.trunk.stack.mixer) == "sliding_window(window=9)"
    assert str(second.model.trunk.stack.mixer) == "sliding_window(window=3)"
    assert first.source.batch(0).x.shape == (4, 4 * 3 + 3)
    assert second.source.batch(0).x.shape == (6, 2 * 3 + 3)
    assert run.steps == 8
    assert run.settings.seed == first.source.seed == 3


def test_a_phase_with_an_unknown_setting_of_the_task():
    own = Experiment(task=TASK, model=SMALL, phases=(Phase(steps=1, task={"pair": 2}),))
    with pytest.raises(WeftError, match="key_value has no setting 'pair'; did you mean 'pairs'"):
        run_of(own)


def test_the_model_reads_the_task():
    own = Experiment(task=TASK, model=SMALL)
    stage = run_of(own).stages[0]
    scores = stage.model.build()(stage.source.batch(0).x)
    assert scores.shape == (32, 4)
    assert torch.isfinite(scores).all()
