"""A layer in one call: by name, by config, by pattern; and what is said when that fails."""

import dataclasses
import pickle

import pytest
import torch

from weft.errors import WeftError
from weft.layers.embedding import Embedding
from weft.layers.positions import Rope
from weft.mixers import MIXERS, Frame, Longformer, Mixer, SlidingWindow, attention, mixer
from weft.mixers.layer import FrameFields
from weft.models import Encoder, Stack
from weft.patterns import Causal, Predicate, Sliding


def encoder():
    return Encoder(embedding=Embedding(vocab=4), stack=Stack(frame=Frame(dim=8, heads=2)))


def test_the_same_layer_in_every_way():
    x, layers = torch.randn(2, 40, 16), []
    for build in (
        lambda: Longformer(window=9).build(Frame(dim=16, heads=4)),
        lambda: Longformer(window=9).build(dim=16, heads=4),
        lambda: attention("longformer(window=9)", dim=16, heads=4),
        lambda: attention(Longformer(window=9), dim=16, heads=4),
    ):
        torch.manual_seed(1)
        layers.append(build())
    assert all(isinstance(layer, Mixer) for layer in layers)
    assert len({layer.frame for layer in layers}) == len({layer.config for layer in layers}) == 1
    first, *others = (layer(x) for layer in layers)
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("name", MIXERS)
def test_every_mechanism_is_built_from_fields(name):
    config = MIXERS[name]()
    causal = not config.traits.bidirectional
    frame = Frame(dim=32, heads=4, causal=causal, length=64)
    layer = config.build(dim=32, heads=4, causal=causal, length=64)
    assert layer.frame == frame
    assert type(layer) is type(config.build(frame))


def test_a_pattern_is_a_mechanism():
    layer = attention(Causal() & Sliding(4), dim=8, heads=2)
    assert layer.pattern == Causal() & Sliding(4)


def test_positions_as_text():
    assert attention("full", dim=8, heads=2, positions="rope").frame.positions == Rope()


def test_an_editor_completes_the_fields_of_a_frame():
    assert set(FrameFields.__annotations__) == {field.name for field in dataclasses.fields(Frame)}


def test_a_config_stays_a_value():
    config = Longformer(window=9)
    assert pickle.loads(pickle.dumps(config)) == config
    assert hash(config) == hash(Longformer(window=9))


def test_a_subclass_inherits_build():
    @MIXERS.register("narrow_window")
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class NarrowWindow(SlidingWindow):
        window: int = 3

    try:
        assert NarrowWindow().build(dim=8, heads=2).frame == Frame(dim=8, heads=2)
    finally:
        del MIXERS._entries["narrow_window"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SlidingWindow()(torch.ones(1, 2, 8)), r"SlidingWindow\(...\).build\(dim=512"),
        (lambda: attention("full", dim=8)(torch.ones(1, 2, 8).long()), "embed ids first"),
        (lambda: SlidingWindow().build(dim=8, haeds=2), "did you mean 'heads'"),
        (lambda: SlidingWindow().build(heads=2), "needs the width of its tokens; give dim"),
        (lambda: SlidingWindow().build(8), "is built in a Frame or from its fields"),
        (lambda: SlidingWindow().build(Frame(dim=8), heads=2), "not both; got a Frame and heads"),
        (lambda: attention("longformr", dim=8), "did you mean 'longformer'"),
        (lambda: attention("longformer(windw=3)", dim=8), "did you mean 'window'"),
        (lambda: attention("longformer", dim=8, window=3), r"write longformer\(window=3\)"),
        (lambda: attention("longformer", dim=8, positions="rop"), "did you mean 'rope'"),
        (lambda: attention("causal() & sliding(3)", dim=8), "is a pattern, not a mixer"),
        (lambda: attention(Longformer, dim=8), "a config such as Longformer"),
        (lambda: mixer(512), "a mixer is a spec"),
        (lambda: mixer("512"), "a mixer is a spec"),
        (lambda: mixer(Predicate(lambda i, j: i >= j)), "attend.* takes any pattern"),
        (lambda: encoder()(torch.ones(1, 2)), r"Encoder holds settings .*Encoder\(...\).build\(\)"),
    ],
)
def test_what_fails_says_how_it_works(call, message):
    with pytest.raises(WeftError, match=message):
        call()
