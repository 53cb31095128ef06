"""Classifiers between layers: the plain model where nothing leaves, less work where rows do."""

import copy
import math

import pytest
import torch
from model_parts import built, decoder, encoder, ids

from weft.errors import Unsupported, WeftError
from weft.models import Classifier, EarlyExit, load, save
from weft.models.exits.early_exit import held_out
from weft.models.exits.policy import Confidence, Conformal, Never, Patience
from weft.objectives import Batch

LAYERS, CLASSES = 4, 3
MASK = torch.arange(9) < torch.tensor([9, 4, 1, 7, 6, 9, 3, 5])[:, None]


def model(trunk=None, **settings):
    shape = trunk or encoder(order="sf" * LAYERS, mixer="full")
    return built(EarlyExit(trunk=shape, classes=CLASSES, **settings)).eval()


def loud(module):
    """Exits that disagree: each classifier is made certain of something else."""
    with torch.no_grad():
        for head in module.heads:
            head[-1].weight.mul_(30)
    return module


def plain_scores(module, x, valid, exit_):
    """An exit from its equation: the stack cut off, normalised, pooled, mixed."""
    views = []
    for layer in range(1, module.exits[exit_] + 1):
        stack = copy.deepcopy(module.trunk.stack)
        stack.layers, stack.depth.layers = stack.layers[:layer], layer
        if layer < LAYERS and str(layer) in module.norms:
            stack.norm = module.norms[str(layer)]
        h = stack(module.trunk.enter(module.trunk.embedding(x, valid=valid)), valid=valid)
        total = (h * valid[..., None]).sum(1)
        views.append(total / valid.sum(1)[:, None])
    if module.config.reads == "layer":
        return module.heads[exit_](views[-1])
    weights = [math.exp(w) for w in module.mixes[exit_].tolist()]
    mixed = sum(w * v for w, v in zip(weights, views, strict=True)) / sum(weights)
    return module.heads[exit_](mixed)


@pytest.mark.parametrize("reads", ["layer", "below"])
@pytest.mark.parametrize("after", [None, (1, 3)], ids=["all", "two"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_every_exit_is_its_equation(reads, after, norm):
    from weft.layers.norm import Norm

    shape = encoder(order="sf" * LAYERS, mixer="full", norm=Norm(place=norm))
    module, x = model(shape, reads=reads, after=after), ids(8, 9)
    history = module.history(x, valid=MASK)
    assert module.exits == ((1, 2, 3, 4) if after is None else (1, 3, 4))
    for exit_ in range(len(module.exits)):
        torch.testing.assert_close(history[:, exit_], plain_scores(module, x, MASK, exit_))
    assert torch.equal(module(x, valid=MASK), history[:, -1])


def test_an_exit_that_borrows_another_norm_is_noticed():
    """A twin whose first exit reads through the last layer's norm."""
    module, x = model(), ids(8, 9)
    truth = plain_scores(module, x, MASK, 0)
    module.norms["1"] = module.trunk.stack.norm
    assert not torch.allclose(module.history(x, valid=MASK)[:, 0], truth)


def test_a_mask_that_stays_behind_is_noticed():
    """A twin that hands rows which stay the masks of the first rows."""
    module, x, policy = loud(model()), ids(8, 9), Confidence(0.985)
    truth = module.leave(x, policy, valid=MASK)
    stay = truth.layers > 1
    wrong = module.leave(x[stay], policy, valid=MASK[: int(stay.sum())])
    assert not torch.allclose(wrong.scores, truth.scores[stay])


def test_the_last_exit_is_a_classifier():
    """With the weights of a Classifier it gives a Classifier's scores."""
    shape = encoder(order="sf" * LAYERS, mixer="full", embed={"registers": 1})
    plain = built(Classifier(trunk=shape, classes=CLASSES, pool="first")).eval()
    module = model(shape, pool="first")
    module.trunk.load_state_dict(plain.trunk.state_dict())
    module.heads[-1].load_state_dict(plain.head.state_dict())
    x = ids(8, 9)
    torch.testing.assert_close(module(x, valid=MASK), plain(x, valid=MASK), rtol=0, atol=0)


@pytest.mark.parametrize("policy", [Never(), Patience(LAYERS), Confidence(1.0)], ids=str)
def test_who_never_leaves_gets_the_full_model_bitwise(policy):
    module, x = loud(model()), ids(8, 9)
    found = module.leave(x, policy, valid=MASK)
    assert torch.equal(found.scores, module(x, valid=MASK))
    assert found.layers.tolist() == [LAYERS] * 8


@pytest.mark.parametrize("reads", ["layer", "below"])
@pytest.mark.parametrize("policy", [Patience(1), Confidence(0.985)], ids=str)
def test_rows_leave_where_the_rule_says(policy, reads):
    module, x = loud(model(reads=reads)), ids(8, 9)
    history = module.history(x, valid=MASK)
    found = module.leave(x, policy, valid=MASK)
    for row in range(8):
        own = history[row : row + 1]
        ends = [k for k in range(1, LAYERS) if policy.leaves(own[:, :k])[0]]
        first = ends[0] if ends else LAYERS
        assert int(found.layers[row]) == first
        torch.testing.assert_close(found.scores[row], own[0, first - 1])
    assert len(found.layers.unique()) > 1, "the rows should differ, or nothing is tested"


def test_rows_that_left_are_not_computed():
    module, x = loud(model()), ids(8, 9)
    policy, rows = Confidence(0.985), []
    for sublayer in module.trunk.stack.sublayers:
        sublayer.register_forward_hook(lambda sub, inputs, out: rows.append(len(out)))
    layers = module.leave(x, policy, valid=MASK).layers
    expected = [int((layers > before).sum()) for before in range(LAYERS)]
    expected = [count for count in expected if count]
    assert rows[::2] == expected
    assert expected[0] > expected[-1]


def test_padding_and_batch_mates_change_nothing():
    module, policy = loud(model()), Confidence(0.985)
    x = ids(8, 9)
    together = module.leave(x, policy, valid=MASK)
    for row in range(8):
        alone = module.leave(x[row : row + 1, MASK[row]], policy)
        torch.testing.assert_close(alone.scores[0], together.scores[row])
        assert alone.layers[0] == together.layers[row]


@pytest.mark.parametrize("mixer", ["full", "fnet", "performer", "sliding_window(window=3)"])
def test_any_mixer(mixer):
    module = model(encoder(order="sf" * LAYERS, mixer=mixer))
    x = ids(8, 9)
    assert torch.equal(module.leave(x, Never()).scores, module(x))


def test_a_decoder_trunk():
    module = model(decoder(order="sf" * LAYERS, mixer="full"), pool="last")
    assert torch.equal(module.leave(ids(8, 9), Never()).scores, module(ids(8, 9)))


def test_policies_are_fitted_on_batches():
    module = loud(model())
    batches = [Batch(x=ids(8, 9, seed=s), valid=MASK, y=ids(8, seed=s) % CLASSES) for s in range(4)]
    scores, y = held_out(module, batches)
    assert scores.shape == (32, LAYERS, CLASSES)
    assert torch.equal(scores[8:16], module.history(batches[1].x, valid=MASK))
    assert torch.equal(y, torch.cat([batch.y for batch in batches]))
    rule = Conformal(0.3).fitted(scores, y)
    assert module.leave(batches[0].x, rule, valid=MASK).scores.shape == (8, CLASSES)
    with pytest.raises(WeftError, match="no batches"):
        held_out(module, [])


def test_it_is_saved_and_loaded(tmp_path):
    module = model(after=(2,), reads="below", hidden=5, pool="attention").float()
    loaded = load(save(module, tmp_path / "model"))
    assert loaded.config == module.config
    assert torch.equal(loaded.history(ids(8, 9)), module.history(ids(8, 9)))


def test_layer_drop_trains_and_its_exits_stand():
    shape = encoder(order="sf" * LAYERS, mixer="full", depth="layer_drop(rate=0.5)")
    module, x = model(shape), ids(8, 9)
    assert torch.equal(module.leave(x, Never()).scores, module(x))
    module.train()
    module.history(x).sum().backward()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: model(after=(5,)), "layers 1 to 4"),
        (lambda: model(after=(0,)), "layers 1 to 4"),
        (lambda: model(reads="above"), "reads is one of 'layer', 'below'"),
        (lambda: model(encoder(recompute="reversible")), "reversible"),
        (lambda: model(encoder(depth="universal(steps=2)")), "again and again"),
    ],
    ids=["beyond", "before", "reads", "reversible", "universal"],
)
def test_what_cannot_be_is_said(make, says):
    with pytest.raises((WeftError, Unsupported), match=says):
        make()


def test_trunks_that_change_their_length_are_refused():
    from weft.models import Funnel

    shape = encoder(order="sfsf", mixer="full")
    with pytest.raises(Unsupported, match="Funnel"):
        model(Funnel(embedding=shape.embedding, stack=shape.stack, blocks=2))
