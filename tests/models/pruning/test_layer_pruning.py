"""Models with some of their layers: what is left computes what it computed before."""

import pytest
import torch
from model_parts import built, decoder, encoder, ids

from weft.errors import Unsupported, WeftError
from weft.feedforward import Dense
from weft.models import Classifier, EarlyExit, LanguageModel, every_other, load, prune_layers, save
from weft.models.stack.sublayer import StackInputs


def model(trunk=None, **settings):
    shape = trunk or encoder(**{"order": "sf" * 4, "mixer": "full", **settings})
    return built(Classifier(trunk=shape, classes=3)).eval()


def skipping(module, keep, x):
    """The old model's scores when only these layers, from 1, run."""
    stack = module.trunk.stack
    h, _ = module.trunk.begin(x, None)
    for layer in keep:
        for place in stack.layers[layer - 1]:
            h = stack.running[place](h, StackInputs())
    pooled = module.pool.of(*module.trunk.end(stack.norm(h), None), None)
    return module.head(pooled)


@pytest.mark.parametrize("keep", [(1, 3), (2,), (1, 2, 3, 4), (4,)], ids=str)
def test_what_is_left_computes_what_it_did(keep):
    module, x = model(), ids(4, 9)
    smaller = prune_layers(module, keep)
    torch.testing.assert_close(smaller(x), skipping(module, keep, x), rtol=0, atol=0)
    assert smaller.config.trunk.stack.order == "sf" * len(keep)


def test_the_wrong_layers_are_noticed():
    module, x = model(), ids(4, 9)
    assert not torch.allclose(prune_layers(module, (1, 3))(x), skipping(module, (1, 4), x))


def test_settings_by_layer_stay_with_their_layers(tmp_path):
    """Mixers, feed-forwards and heads of their own, and windows chosen by a layer's number."""
    module = model(
        mixer=("full", "longformer(window=[2, 3, 4, 5])", "sliding_window(window=2)", "fnet"),
        feedforward=tuple(Dense(expansion=k) for k in (1, 2, 3, 4)),
        layer_heads=(3, 2, 1, 3),
    ).float()
    x = ids(4, 9)
    smaller = prune_layers(module, (2, 4))
    torch.testing.assert_close(smaller(x), skipping(module, (2, 4), x))
    stack = smaller.config.trunk.stack
    assert (stack.layer_heads, stack.layer_numbers) == ((2, 3), (1, 3))
    assert torch.equal(load(save(smaller, tmp_path / "model"))(x), smaller(x))
    again = prune_layers(smaller, (2,))
    torch.testing.assert_close(again(x), skipping(module, (4,), x))
    assert again.config.trunk.stack.layer_numbers == (3,)


def test_a_sandwich():
    module, x = model(order="ssfsff"), ids(4, 9)
    keep = (1, 3)  # "s", "sff": layers reach from one 's' to the next
    smaller = prune_layers(module, keep)
    assert smaller.config.trunk.stack.order == "ssff"
    torch.testing.assert_close(smaller(x), skipping(module, keep, x))


def test_layer_drop_and_decoders():
    shape = decoder(order="sf" * 4, mixer="full", depth="layer_drop(rate=0.5)")
    lm = built(LanguageModel(trunk=shape)).eval()
    smaller = prune_layers(lm, every_other(4))
    assert smaller.generate(ids(1, 3), 4).shape == (1, 7)
    assert smaller.config.trunk.stack.depth == shape.stack.depth


@pytest.mark.parametrize(
    ("layers", "rate", "keep"),
    [(6, 0.5, (1, 3, 5)), (12, 0.25, (1, 2, 3, 5, 6, 7, 9, 10, 11)), (3, 0.2, (1, 2, 3))],
)
def test_every_other(layers, rate, keep):
    assert every_other(layers, rate) == keep


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: prune_layers(model(), ()), "layers 1 to 4"),
        (lambda: prune_layers(model(), (0, 1)), "layers 1 to 4"),
        (lambda: prune_layers(model(), (3, 1)), "rising"),
        (lambda: prune_layers(model(shared=2), (1,)), "share"),
        (lambda: prune_layers(model(recompute="reversible"), (1,)), "reversible"),
        (lambda: every_other(4, 0.9), "every second layer"),
    ],
    ids=["none", "zero", "order", "shared", "reversible", "rate"],
)
def test_what_cannot_be_is_said(make, says):
    with pytest.raises(WeftError, match=says):
        make()


def test_exits_are_trained_afterwards():
    shape = encoder(order="sfsf", mixer="full")
    with pytest.raises(Unsupported, match="exits belong to layers"):
        prune_layers(EarlyExit(trunk=shape, classes=3).build(), (1,))
