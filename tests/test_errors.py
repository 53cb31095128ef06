"""A caller's mistake gets the rule, the value and the way out, for every mixer."""

import dataclasses

import pytest
import torch

from weft.errors import Unsupported, WeftError
from weft.layers.positions import POSITIONS, Rope
from weft.mixers import MIXERS, Frame
from weft.mixers.base import Mixer, Traits
from weft.testing.cases import DIM, frames, small

CONFIGS = [small(MIXERS[name]) for name in MIXERS]
each = pytest.mark.parametrize("config", CONFIGS, ids=str)
NEVER_CAUSAL = [config for config in CONFIGS if not config.traits.causal]


def built(config):
    return config.build(next(frames(config))).eval()


X = torch.zeros(2, 5, DIM)


@each
@pytest.mark.parametrize(
    "x", [X[0], X[..., :-1], X[None], torch.zeros(2, DIM, 5)], ids=lambda x: str(tuple(x.shape))
)
def test_x_of_a_wrong_shape(config, x):
    with pytest.raises(WeftError) as caught:
        built(config)(x)
    assert f"x is (batch, length, {DIM}); got {tuple(x.shape)}" in str(caught.value)


@each
@pytest.mark.parametrize(
    "valid",
    [
        torch.ones(2, 5),
        torch.ones(2, 5, dtype=torch.long),
        torch.ones(2, 4, dtype=torch.bool),
        torch.ones(1, 5, dtype=torch.bool),
        torch.ones(5, dtype=torch.bool),
        torch.ones(2, 1, 5, dtype=torch.bool),
    ],
    ids=lambda v: f"{v.dtype} {tuple(v.shape)}",
)
def test_valid_of_a_wrong_dtype_or_shape(config, valid):
    with pytest.raises(WeftError) as caught:
        built(config)(X, valid=valid)
    message = str(caught.value)
    assert "valid is a boolean (batch, length) = (2, 5), True where a token is real" in message
    assert f"got {valid.dtype} {tuple(valid.shape)}" in message


@each
def test_context_valid_without_a_context(config):
    with pytest.raises(WeftError, match="no context was given"):
        built(config)(X, context_valid=torch.ones(2, 5, dtype=torch.bool))


@each
def test_a_wrong_context(config):
    mixer = built(config)
    if not config.traits.cross:
        with pytest.raises(Unsupported, match=f"{config.name} cannot read a context.*mixers that"):
            mixer(X, context=X)
        return
    with pytest.raises(WeftError, match=r"context is \(batch, length, 32\); got \(2, 5, 31\)"):
        mixer(X, context=X[..., :-1])
    with pytest.raises(WeftError, match="x and context hold 2 and 1 rows"):
        mixer(X, context=X[:1])
    with pytest.raises(WeftError, match=r"context_valid is a boolean .* = \(2, 5\)"):
        mixer(X, context=X, context_valid=torch.ones(2, 4, dtype=torch.bool))


@each
def test_a_wrong_mark(config):
    mixer = built(config)
    with pytest.raises(WeftError, match=f"{config.name} does not take the mark 'colour'; it takes"):
        mixer(X, colour=torch.zeros(2, 5))
    for name in mixer.marks:
        with pytest.raises(WeftError, match=rf"{name} is .* = \(2, 5\); got \(2, 4\)"):
            mixer(X, **{name: torch.zeros(2, 4, dtype=torch.long)})


@pytest.mark.parametrize("config", [c for c in CONFIGS if c not in NEVER_CAUSAL], ids=str)
def test_causal_where_it_can_be(config):
    mixer = config.build(Frame(dim=DIM, heads=4, length=64, causal=True))
    y = mixer(torch.ones(1, 9, DIM).cumsum(1))
    assert y.shape == (1, 9, DIM)
    assert y.isfinite().all()


@pytest.mark.parametrize("config", NEVER_CAUSAL, ids=str)
def test_causal_where_it_cannot_be(config):
    with pytest.raises(Unsupported) as caught:
        config.build(Frame(dim=DIM, heads=4, length=64, causal=True))
    message = str(caught.value)
    assert message.startswith(f"{config.name} cannot be causal: ")
    assert "use causal=False, or one that can: " in message
    able = message.rpartition(": ")[2].split(", ")
    assert able == [name for name in MIXERS if MIXERS[name]().traits.causal]


@pytest.mark.parametrize("config", [c for c in CONFIGS if c.traits.bidirectional], ids=str)
def test_decoding_where_it_cannot(config):
    mixer = built(config)
    assert not mixer.frame.causal
    for call in (mixer.start, lambda: mixer.state_size(3)):
        with pytest.raises(Unsupported, match=r"causal=True|does not stream"):
            call()


@each
def test_an_unknown_setting_suggests(config):
    fields = [field.name for field in dataclasses.fields(config)]
    if not fields:
        with pytest.raises(WeftError, match=f"{config.name} has no setting 'window'"):
            MIXERS.make(config.name, window=3)
        return
    wrong = fields[0] + "s_"
    with pytest.raises(WeftError, match=f"{config.name} has no setting '{wrong}'; .*{fields[0]}"):
        MIXERS.make(config.name, **{wrong: 3})


@pytest.mark.parametrize("name", MIXERS)
def test_an_unknown_name_suggests(name):
    wrong = name[:-1] + "_" if len(name) > 4 else name + "t"
    with pytest.raises(WeftError, match=f"no mixer named '{wrong}'; did you mean .*'{name}'"):
        MIXERS.parse(wrong)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dim": 10, "heads": 4}, "dim=10 is not a multiple of heads=4; give head_dim"),
        ({"dim": 0}, "dim is a whole number of at least 1; got dim=0"),
        ({"dim": 8, "heads": 0}, "heads is a whole number of at least 1; got heads=0"),
        ({"dim": 8, "heads": 4, "kv_heads": 3}, "heads=4 is not a multiple of kv_heads=3"),
        ({"dim": 8, "heads": 4, "kv_heads": 8}, "heads=4 is not a multiple of kv_heads=8"),
        ({"dim": 8, "heads": 4, "kv_heads": 0}, "kv_heads=0"),
        ({"dim": 8, "dropout": 1.0}, r"dropout is in \[0, 1\); got 1.0"),
        ({"dim": 8, "dropout": -0.1}, r"dropout is in \[0, 1\); got -0.1"),
    ],
    ids=str,
)
def test_a_frame_that_does_not_fit(settings, message):
    with pytest.raises(WeftError, match=message):
        Frame(**settings)


def test_a_frame_fills_in_what_follows():
    frame = Frame(dim=32, heads=4)
    assert (frame.head_dim, frame.kv_heads) == (8, 4)
    assert Frame(dim=30, heads=4, head_dim=6).head_dim == 6


def test_rope_needs_pairs():
    with pytest.raises(WeftError, match="head_dim is even; got 5"):
        Rope().build(heads=2, head_dim=5)


def test_positions_suggest():
    with pytest.raises(WeftError, match="no position scheme named 'ropes'; did you mean 'rope'"):
        POSITIONS.parse("ropes")


def test_a_causal_only_mechanism_says_so():
    class OneWay:
        name = "one_way"
        traits = Traits(
            family="f", paper="p", time="n", memory="n", causal=True, bidirectional=False
        )

    with pytest.raises(Unsupported, match="one_way is causal by construction; use causal=True"):
        Mixer(OneWay(), Frame(dim=8))


def test_unsupported_is_a_value_error():
    assert issubclass(Unsupported, WeftError)
    assert issubclass(WeftError, ValueError)
