"""The released settings of Long Range Arena, against its own numbers, and as models that run."""

import dataclasses

import pytest
import torch

from weft.arena.experiment.model import Model
from weft.arena.experiment.runs import model_of
from weft.arena.experiment.settings import read_settings, recipes
from weft.feedforward.activations import width
from weft.models import Classifier, Matcher
from weft.training.freeze import freeze
from weft.training.schedule import learning_rate

# layers, width, heads, width of queries and keys, feed-forward; batch, steps, weight decay
SIZES = {
    "lra_listops": (4, 512, 8, 512, 1024, 32, 5_000, 0.1),
    "lra_text": (4, 256, 4, 256, 1024, 32, 20_000, 0.1),
    "lra_retrieval": (4, 128, 4, 128, 512, 32, 5_000, 0.1),
    "lra_image": (1, 128, 8, 64, 128, 256, 175 * 200, 0.0),
    "lra_pathfinder": (4, 32, 4, 16, 32, 512, 312 * 200, 0.0),
    "lra_pathx": (1, 32, 2, 16, 32, 64, 2500 * 200, 0.0),
}
TOKENS = {
    "lra_listops": 2000,
    "lra_text": 4000,
    "lra_retrieval": 4000,
    "lra_image": 1024,
    "lra_pathfinder": 1024,
    "lra_pathx": 16_384,
}
# Learning rates of some updates, from the release's formula by hand.
RATES = {
    "lra_listops": {1000: 0.05 / 1000**0.5, 4000: 0.05 / 4000**0.5},
    "lra_text": {4000: 0.05 / 2 / 8000**0.5, 8000: 5.59e-4},
    "lra_retrieval": {5000: 0.05 * 5000 / 8000 / 8000**0.5},
    "lra_image": {175: 5e-4, 35_000: 0.0},
    "lra_pathfinder": {156: 5e-4, 312: 1e-3, 62_400: 0.0},
    "lra_pathx": {2500: 1e-3, 500_000: 0.0},
}
# layers, width, heads, width of queries and keys, feed-forward, dropout
IMAGE = {
    "bigbird": (1, 128, 1, 64, 128, 0.3),
    "block_local": (1, 128, 2, 64, 128, 0.3),
    "longformer": (4, 128, 4, 64, 128, 0.3),
    "reformer": (4, 64, 8, 64, 64, 0.3),  # 32 is written, the layer takes the whole width
    "linformer": (1, 128, 8, 64, 128, 0.3),
    "linear_transformer": (1, 128, 8, 64, 128, 0.3),
    "sparse_transformer": (1, 128, 8, 64, 128, 0.3),
    "synthesizer": (1, 128, 8, 64, 128, 0.3),
    "performer": (1, 128, 8, 64, 128, 0.3),
    "sinkhorn": (1, 32, 1, 32, 64, 0.1),
}
PATHFINDER = {
    "linear_transformer": (1, 128, 2, 64, 128, 0.2),
    "linformer": (1, 32, 2, 16, 32, 0.2),
    "block_local": (2, 64, 4, 32, 64, 0.1),
    "longformer": (2, 32, 2, 16, 32, 0.1),
    "reformer": (2, 64, 8, 64, 64, 0.2),  # as above
    "sparse_transformer": (1, 32, 8, 16, 32, 0.2),
    "synthesizer": (2, 64, 4, 32, 64, 0.2),
    "bigbird": (4, 64, 2, 32, 64, 0.2),
    "performer": (4, 32, 8, 16, 32, 0.2),
    "sinkhorn": (2, 32, 4, 16, 64, 0.2),
}


def hidden(model: Model):
    stack = model.trunk.stack
    return width(stack.feedforward.expansion, stack.feedforward.hidden, stack.frame.dim)


def sizes(model: Model):
    frame, found = model.trunk.stack.frame, model.sizes()
    wide = frame.heads * frame.head_dim
    return found["layers"], frame.dim, frame.heads, wide, hidden(model)


def test_all_six_are_there():
    assert set(SIZES) <= set(recipes())


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_the_released(name):
    base = read_settings(name).experiment
    training = base.training
    found = (*sizes(base.model), training.batch, training.steps, training.weight_decay)
    assert found == SIZES[name]
    assert (training.betas, training.eps) == ((0.9, 0.98), 1e-9)
    assert training.clip == (1.0 if name == "lra_pathx" else None)
    assert base.model.head.hidden == hidden(base.model)


@pytest.mark.parametrize("name", SIZES)
def test_learning_rates_are_the_released(name):
    training = read_settings(name).experiment.training
    for step, rate in RATES[name].items():
        assert learning_rate(training, step) == pytest.approx(rate, rel=1e-3, abs=1e-12)


@pytest.mark.parametrize(
    ("recipe", "expected"), [("lra_image", IMAGE), ("lra_pathfinder", PATHFINDER)]
)
def test_sizes_of_each_mechanism(recipe, expected):
    mixers = read_settings(recipe).mixers
    assert set(mixers) == {"full", *expected}
    for name, size in expected.items():
        assert (*sizes(mixers[name].model), mixers[name].model.trunk.stack.dropout) == size, name
        assert mixers[name].model.head.hidden == hidden(mixers[name].model), name
        own = 0.7 if (recipe, name) == ("lra_image", "sinkhorn") else 0.0
        assert mixers[name].training.weight_decay == own, name


@pytest.mark.parametrize("name", SIZES)
def test_a_cls_token_is_there_where_it_is_read(name):
    for label, one in read_settings(name).mixers.items():
        registers = one.model.trunk.embedding.registers
        assert one.model.head.pool == ("first" if registers else "mean"), label


@pytest.mark.parametrize("name", SIZES)
def test_the_task_is_there(name):
    task = read_settings(name).experiment.task
    assert task.length == TOKENS[name]
    assert task.kind == ("match" if name == "lra_retrieval" else "classify")


@pytest.mark.parametrize("name", SIZES)
def test_longformer_has_no_weights_that_nothing_reads(name):
    """Without global tokens, projections of their own would be a third more parameters."""
    mixer = read_settings(name).mixers["longformer"].model.trunk.stack.mixer
    assert (mixer.global_first, mixer.global_projections) == (0, False)


@pytest.mark.parametrize("name", sorted(set(SIZES) - {"lra_pathx"}))
def test_reformer_cuts_the_sequence_into_ten_chunks(name):
    """As the release runs: padded past a multiple of ten, then ten chunks."""
    one = read_settings(name).mixers["reformer"]
    tokens = TOKENS[name] + one.model.trunk.embedding.registers
    assert f"chunk={tokens // 10 + 1}," in one.mixer


@dataclasses.dataclass(frozen=True)
class Small:
    """A task of the recipe's shape at a length that a test can afford."""

    kind: str
    vocab: int = 20
    length: int = 96
    classes: int = 3


@pytest.mark.parametrize("name", SIZES)
def test_every_contender_is_a_model_that_runs(name):
    kind = "match" if name == "lra_retrieval" else "classify"
    for label, one in read_settings(name).mixers.items():
        head = Matcher if kind == "match" else Classifier
        trunk, own = one.model.bound(Small(kind))
        model = head(trunk=trunk, **own.of_documents()).build().eval()
        ids = torch.randint(20, (2, 96))
        valid = torch.arange(96) < torch.tensor([[96], [50]])
        with torch.no_grad():
            if kind == "match":
                scores = model(ids, ids.flip(0), first_valid=valid, second_valid=valid)
            else:
                scores = model(ids, valid=valid)
        assert scores.shape == (2, 3), label
        assert scores.isfinite().all(), label


MODERN = ("modern_image", "modern_listops", "modern_pathfinder", "modern_text")


@pytest.mark.parametrize("name", MODERN)
def test_modern_recipes_pretrain_on_their_own_inputs_with_the_weights_they_go_on_with(name):
    base = read_settings(name).experiment
    first, second = base.phase
    assert first.objective.name == "masked_lm"
    assert (first.task, second.objective, second.task) == (None, None, None)
    assert base.model.trunk.stack.frame.positions.name == "rope"
    assert read_settings(name, ["phase=[]"]).experiment.phase == ()


@pytest.mark.parametrize("name", MODERN)
def test_modern_recipes_compare_one_model_of_several_mechanisms(name):
    found = read_settings(name).mixers
    assert "full" in found
    assert len(found) >= 7  # dense, and six sparse or linear ones
    assert len({sizes(one.model) for one in found.values()}) == 1


def test_convolutions_alone_are_trained_in_the_second_stage():
    # Seen to fail: without "norm" among the frozen, its weights are trained as well.
    found = read_settings("transactions_convolutions", ["task.train=8"]).experiment
    model = model_of(found).build()
    freeze(model, found.phase[1].frozen)
    trained = {name for name, own in model.named_parameters() if own.requires_grad}
    assert trained
    assert all(".compress" in name for name in trained), trained
