"""Losses of all exits against the equation, and a training from a settings file."""

import json

import pytest
import torch
from objective_parts import CLASSES, VOCAB, rows
from test_classify import log_softmax

from weft.errors import Unsupported, WeftError
from weft.layers.embedding import Embedding
from weft.mixers import Frame
from weft.models import EarlyExit, Encoder, LanguageModel, Stack
from weft.models.exits.decoding import token_history
from weft.objectives import OBJECTIVES, CausalLM, Classify, EarlyExits, Head, Regress


def trunk(**stack):
    settings = {"frame": Frame(dim=8, heads=2, length=20), "order": "sfsfsf", "mixer": "full"}
    embedding = Embedding(vocab=VOCAB, positions="sinusoidal")
    return Encoder(embedding=embedding, stack=Stack(**{**settings, **stack}))


def built(objective, **stack):
    torch.manual_seed(0)
    model = objective.build(trunk(**stack), Head(classes=CLASSES)).build().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


WEIGHTS = {"equal": (1, 1, 1), "depth": (1 / 6, 2 / 6, 3 / 6)}


@pytest.mark.parametrize("weights", WEIGHTS)
def test_the_loss_is_the_weighted_sum_of_the_exits(weights):
    objective, batch = EarlyExits(weights=weights), rows()
    model = built(objective)
    history = model.history(batch.x, valid=batch.valid)
    found = objective.loss(model, batch, torch.Generator())
    truth = 0.0
    for weight, scores in zip(WEIGHTS[weights], history.unbind(1), strict=True):
        log = log_softmax(scores)
        truth -= weight * sum(log[row, label] for row, label in enumerate(batch.y.tolist()))
    assert found.total.item() == pytest.approx(truth, rel=1e-12)
    right = history[:, -1].argmax(-1) == batch.y
    assert (int(found.count), int(found.right)) == (len(batch), int(right.sum()))
    assert found.hits.tolist() == right.tolist()


def test_numbers_are_learned_at_every_exit():
    objective, batch = EarlyExits(of=Regress(), weights="depth"), rows()
    model = built(objective)
    history = model.history(batch.x, valid=batch.valid)  # (b, 3, 1)
    wrong = (history[..., 0] - batch.y[:, None]).square().sum(0)  # (3,)
    truth = (wrong * wrong.new_tensor(WEIGHTS["depth"])).sum()
    found = objective.loss(model, batch, torch.Generator())
    torch.testing.assert_close(found.total, truth)
    assert model.config.classes == 1


@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_language_model_learns_at_every_exit(weights):
    objective, batch = EarlyExits(of=CausalLM(), weights=weights), rows()
    model = built(objective)
    assert isinstance(model.config, LanguageModel)
    history = token_history(model, batch.x, valid=batch.valid)  # (b, n, exits, vocab)
    truth, count = 0.0, 0
    for row in range(len(batch)):
        for t in range(int(batch.valid[row].sum()) - 1):
            count += 1
            for k, weight in enumerate(WEIGHTS[weights]):
                truth -= weight * log_softmax(history[row, t, k])[batch.x[row, t + 1]]
    found = objective.loss(model, batch, torch.Generator())
    assert found.total.item() == pytest.approx(truth, rel=1e-12)
    assert int(found.count) == count


@pytest.mark.parametrize("inner", [Classify(), CausalLM()], ids=str)
def test_evaluation_is_that_of_the_full_model(inner):
    objective, batch = EarlyExits(of=inner), rows()
    model = built(objective)
    training = objective.loss(model, batch, torch.Generator())
    model.eval()
    found = objective.loss(model, batch, torch.Generator())
    assert found.total == inner.loss(model, batch, torch.Generator()).total
    assert found.total < training.total
    assert objective.metric == inner.metric


def test_every_exit_gets_gradients():
    model, objective = built(EarlyExits(reads="below")), EarlyExits(reads="below")
    objective.loss(model, rows(), torch.Generator()).total.backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in model.heads.parameters())
    assert all(p.grad is not None for p in model.mixes)


def test_specs_and_models():
    text = "early_exit(of=classify, after=[1, 2], reads='below', weights='depth')"
    objective = OBJECTIVES.parse(text)
    assert OBJECTIVES.parse(str(objective)) == objective
    config = objective.build(trunk(), Head(classes=5, pool="max", hidden=7))
    assert config == EarlyExit(
        trunk=trunk(), classes=5, pool="max", hidden=7, after=(1, 2), reads="below"
    )
    assert OBJECTIVES.parse("early_exit(of=causal_lm)").of == CausalLM()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: OBJECTIVES.parse("early_exit(of=masked_lm)"), "classify, regress or causal_lm"),
        (lambda: EarlyExits(weights="late"), "weights is one of 'equal', 'depth'"),
        (lambda: EarlyExits(of=CausalLM(), reads="below"), "one layer's stream"),
        (lambda: built(EarlyExits(of=CausalLM()), recompute="reversible"), "reversible"),
    ],
    ids=["of", "weights", "reads", "reversible"],
)
def test_what_cannot_be_is_said(make, says):
    with pytest.raises((WeftError, Unsupported), match=says):
        make()


SETTINGS = """
mixer = "full"
task = "listops(length=24, train=64, valid=32, test=32)"
[model]
layers = 3
dim = 16
heads = 2
[training]
steps = 4
batch = 8
device = "cpu"
[[phase]]
objective = "early_exit(after=[1, 2], weights='depth')"
"""


def test_a_settings_file_trains_exits_and_eval_leaves_by_them(tmp_path):
    from typer.testing import CliRunner

    from weft.cli import app
    from weft.models import load

    settings = tmp_path / "exits.toml"
    settings.write_text(SETTINGS)
    run = CliRunner().invoke(app, ["train", str(settings), "--out", str(tmp_path / "run")])
    assert run.exit_code == 0, run.output
    model = load(tmp_path / "run" / "best")
    assert model.exits == (1, 2, 3)
    found = {}
    for policy in (None, "never", "patience(3)", "confidence(0.05)", "conformal(0.5)"):
        extra = [] if policy is None else ["--exit", policy]
        given = ["eval", str(tmp_path / "run"), "--device", "cpu", "--json", *extra]
        done = CliRunner().invoke(app, given)
        assert done.exit_code == 0, done.output
        found[policy] = json.loads(done.output)
    for policy in ("never", "patience(3)"):
        assert found[policy]["score"] == found[None]["score"]
        assert found[policy]["agreement"] == 1.0
        assert found[policy]["layers"] == 3.0
    assert found["confidence(0.05)"]["layers"] == 1.0
    assert found["conformal(0.5)"]["agreement"] > 0.0
    assert found["conformal(0.5)"]["exit"].startswith("conformal(")
    given = ["eval", str(tmp_path / "run"), "--exit", "never", "--split", "valid"]
    assert "fitted on valid" in CliRunner().invoke(app, given).output
    shown = CliRunner().invoke(app, ["eval", str(tmp_path / "run"), "--exit", "patience(1)"])
    assert "layers run" in shown.output


def test_a_model_without_exits_says_so():
    from weft.arena.analysis.exits import exit_score

    model = built(Classify())
    with pytest.raises(WeftError, match="train it with the objective early_exit"):
        exit_score(model, "never", [], [])
