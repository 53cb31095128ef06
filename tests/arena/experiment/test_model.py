"""A model's config and a task give a model; its size is what the sizes say."""

from types import SimpleNamespace

import pytest
import torch

from weft.arena.analysis.flops import parameters
from weft.arena.experiment.model import Model
from weft.arena.experiment.runs import model_of, run_of
from weft.arena.experiment.settings import Experiment, with_mixer
from weft.config import changed
from weft.errors import Unsupported, WeftError
from weft.feedforward import Dense, Switch
from weft.layers.embedding import Embedding
from weft.mixers import Frame
from weft.models import Classifier, Decoder, Encoder, LanguageModel, Stack
from weft.objectives import Match
from weft.training.curriculum import Phase
from weft.training.settings import TrainingSettings

TASK = "key_value(pairs=4, symbols=8, values=4, train=20, valid=10, test=10)"
LANGUAGE = SimpleNamespace(kind="language", vocab=9, length=12, classes=0)
PAIR = SimpleNamespace(kind="match", vocab=9, length=12, classes=3)


def small(**given):
    return changed(Model(), {"layers": 2, "dim": 16, "heads": 2, **given})


SMALL = small(feedforward={"hidden": 24})


def test_parameters_are_those_of_the_matrices():
    c, f, vocab, classes = 16, 24, 8 + 4 + 1, 4
    attention = 4 * (c * c + c)
    feedforward = (c * f + f) + (f * c + c)
    norms = 2 * 2 * c
    whole = vocab * c + 2 * (attention + feedforward + norms) + 2 * c + (c * classes + classes)
    config = model_of(Experiment(task=TASK, model=SMALL))
    assert parameters(config) == whole
    assert sum(p.numel() for p in config.build().parameters()) == whole


def test_the_defaults_are_a_small_encoder():
    trunk, head = Model().bound(PAIR)
    frame = Frame(dim=128, heads=4, length=12)
    embedding = Embedding(vocab=9, positions="sinusoidal")
    assert trunk == Encoder(embedding=embedding, stack=Stack(frame=frame, order="sf" * 4))
    assert (head.classes, head.pool) == (3, "mean")


def test_the_heads_may_be_narrower_than_the_model():
    body = model_of(Experiment(task=TASK, model=small(head_dim=4))).build().trunk.stack.mixers[0]
    assert body.project.to_q.weight.shape == (8, 16)


def test_feed_forwards_take_turns():
    model = small(layers=4, feedforward="dense, switch(experts=3)")
    assert model.trunk.stack.feedforwards == (Dense(), Switch(experts=3)) * 2
    with pytest.raises(WeftError, match="take turns, so their number divides 4; got 3"):
        small(layers=4, feedforward="dense, gate, moe")


def test_mixers_take_turns_or_have_a_layer_each():
    model = small(layers=4, mixer="full, sliding_window(window=3)")
    assert model.mixer == "full, sliding_window(window=3)"
    assert [m.name for m in model.trunk.stack.mixers] == ["full", "sliding_window"] * 2
    windows = [f"sliding_window(window={w})" for w in (2, 3, 4, 5)]
    assert [m.window for m in small(layers=4, mixer=windows).trunk.stack.mixers] == [2, 3, 4, 5]


def test_layers_repeat_a_layer_of_the_order():
    assert small(layers=3).trunk.stack.order == "sfsfsf"
    assert small(order="ssff", layers=2).trunk.stack.order == "ssffssff"
    assert changed(small(order="ssff", layers=2), {"layers": 1}).trunk.stack.order == "ssff"
    with pytest.raises(WeftError, match="layers is at least 1; got layers=0"):
        small(layers=0)


def test_what_a_task_gives_may_be_given_and_be_more():
    trunk, _ = small(vocab=64, length=20).bound(PAIR)
    assert (trunk.embedding.vocab, trunk.stack.frame.length) == (64, 20)
    with pytest.raises(WeftError, match=r"the task needs embedding.vocab of at least 9; got 5"):
        small(vocab=5).bound(PAIR)
    with pytest.raises(WeftError, match=r"needs head.classes of at least 3; got 2"):
        small(classes=2).bound(PAIR)


def test_kinds_of_tasks_have_their_models():
    assert isinstance(model_of(Experiment(task=TASK, model=SMALL)), Classifier)
    assert isinstance(SMALL.bound(LANGUAGE)[0], Decoder)
    assert isinstance(SMALL.bound(PAIR)[0], Encoder)
    assert Match().build(*SMALL.bound(PAIR)).classes == 3
    assert isinstance(small(trunk="decoder").bound(PAIR)[0], Decoder), "where a file says so"


def test_a_mechanism_that_cannot_be_causal_refuses_language():
    with pytest.raises(Unsupported, match="fnet cannot be causal"):
        small(mixer="fnet").bound(LANGUAGE)[0].build()


def test_a_head_is_not_a_trunk():
    with pytest.raises(WeftError, match="trunk is one of encoder, decoder, funnel"):
        Model(trunk=Classifier(trunk=SMALL.bound(PAIR)[0], classes=2))


def test_phases_become_stages():
    phases = (
        Phase(steps=3, objective="masked_lm(rate=0.3)", batch=4),
        Phase(steps=5, task={"pairs": 2}, mixer={"window": 3}, lr=0.5, until=0.9),
    )
    own = with_mixer(
        Experiment(
            task=TASK,
            model=SMALL,
            training=TrainingSettings(steps=99, batch=6, seed=3),
            phase=phases,
        ),
        "sliding_window(window=9)",
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


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        (
            {"task": {"pair": 2}},
            r"phase\[0\].task: key_value has no setting 'pair'; did",
        ),
        ({"model": {"layrs": 2}}, r"phase\[0\].model has no setting 'layrs'; did you mean"),
        ({"mixer": {"windw": 2}}, "no setting 'windw'"),
    ],
)
def test_a_phase_with_an_unknown_setting(phase, message):
    own = Experiment(task=TASK, model=SMALL, phase=(Phase(steps=1, **phase),))
    with pytest.raises(WeftError, match=message):
        run_of(own)


def test_the_model_reads_the_task():
    own = Experiment(task=TASK, model=SMALL)
    stage = run_of(own).stages[0]
    scores = stage.model.build()(stage.source.batch(0).x)
    assert scores.shape == (32, 4)
    assert torch.isfinite(scores).all()
