"""Attention around sparse projections keeps the whole contract of its mechanism."""

import dataclasses
from functools import partial

import pytest
import torch

from weft.errors import Unsupported, WeftError
from weft.layers.padding import left_align, restore
from weft.mixers import MIXERS, Frame, Multiplicative, MultiplicativeConv
from weft.mixers.base import AttentionMixer
from weft.testing import cases, contract
from weft.testing.projections import OF_THE_MIXER, Projected

CONV = MultiplicativeConv(modules=8)
NAMES = ("full", "sliding_window", "longformer", "linear_transformer")
PROJECTIONS = {
    "multiplicative": Multiplicative(modules=4),
    "with output": Multiplicative(modules=8, out=True),
    "conv": CONV,
    "conv with output": MultiplicativeConv(modules=4, length=4, width=1, out=True),
}


def checks():
    for name in NAMES:
        for label, projection in PROJECTIONS.items():
            if label != "conv" and name != "full":
                continue
            config = Projected(cases.small(MIXERS[name]), projection)
            for rule, check in contract.checks_for(config):
                if rule not in OF_THE_MIXER:
                    yield pytest.param(check, id=f"{name}-{label}-{rule}")


@pytest.mark.parametrize("check", list(checks()))
def test_contract(check):
    check()


class Forgets(Projected):
    """A twin whose projection forgets the tokens before a step."""

    def build(self, frame):
        mixer = super().build(frame)
        step = mixer.project.step
        mixer.project.step = lambda x, memory: step(x, torch.zeros_like(memory))
        return mixer


class Peeks(Projected):
    """A twin that pads both ways, so that a token reads the next one."""

    def build(self, frame):
        mixer = super().build(frame)
        mixer.project.around = (1, 1)
        return mixer


class ReadsPadding(Projected):
    """A twin that leaves padding as it is."""

    def build(self, frame):
        mixer = super().build(frame)
        mixer.forward = partial(_padding_as_given, mixer)
        return mixer


def _padding_as_given(mixer, x, *, valid=None, **rest):
    if valid is None:
        return type(mixer).forward(mixer, x, **rest)
    moved, real, order = left_align(x, valid)
    return restore(mixer.mix(moved, real, None, None), order, valid)


class HidesMemory(Projected):
    """A twin that does not count what the projection remembers."""

    def build(self, frame):
        mixer = super().build(frame)
        mixer.project.memory_size = 0
        return mixer


@pytest.mark.parametrize(
    ("twin", "check"),
    [
        (Forgets, contract.check_streaming),
        (Peeks, contract.check_causality),
        (ReadsPadding, contract.check_padding),
        (HidesMemory, contract.check_state_size),
    ],
    ids=["forgets", "peeks", "reads padding", "hides memory"],
)
def test_a_broken_twin_is_found(twin, check):
    config = cases.small(MIXERS["full"])
    check(Projected(config, CONV))
    with pytest.raises(AssertionError):
        check(twin(config, CONV))


@pytest.mark.parametrize("name", list(MIXERS))
@pytest.mark.parametrize("label", ["multiplicative", "conv"])
def test_every_mixer_takes_it_or_refuses_clearly(name, label):
    """Whoever builds with it runs, and decodes where it can; the others say what to do."""
    config, projection = cases.small(MIXERS[name]), PROJECTIONS[label]
    wide = {"modules": 4} if label == "multiplicative" else {"modules": 8}
    for frame in cases.frames(config, projection=dataclasses.replace(projection, **wide)):
        refusal = cases.refusal(config, frame)
        if refusal is not None:
            assert "projection=" in refusal
            continue
        mixer = cases.build(config, frame)
        assert isinstance(mixer, AttentionMixer)
        x = cases.tokens(2, 13, cases.DIM)
        with torch.no_grad():
            whole = mixer(x)
            torch.testing.assert_close(whole, mixer.reference(x))
            if frame.causal and config.traits.state is not None:
                first, state = mixer.step(x[:, :5], mixer.start(2))
                rest, state = mixer.step(x[:, 5:], state)
                torch.testing.assert_close(torch.cat((first, rest), dim=1), whole)
                assert state.size() == mixer.state_size(13)


def test_absorbed_tokens_are_remembered_by_the_convolution():
    mixer = cases.build(MIXERS["full"](), Frame(dim=32, heads=4, causal=True, projection=CONV))
    x = cases.tokens(2, 9, 32)
    with torch.no_grad():
        state = mixer.absorb(x[:, :4], mixer.start(2))
        y, _ = mixer.step(x[:, 4:], state)
        torch.testing.assert_close(y, mixer(x)[:, 4:])


def test_a_context_is_refused_by_a_convolution():
    mixer = cases.build(MIXERS["full"](), Frame(dim=32, heads=4, projection=CONV))
    x = cases.tokens(2, 9, 32)
    with pytest.raises(Unsupported, match="context"):
        mixer(x, context=x)


def test_a_frame_takes_a_spec_and_refuses_others():
    frame = Frame(dim=32, heads=4, projection="multiplicative_conv(modules=8)")
    assert frame.projection == CONV
    with pytest.raises(WeftError, match="multiplicative_conv"):
        Frame(dim=32, heads=4, projection=3)
    with pytest.raises(WeftError, match="did you mean"):
        Frame(dim=32, heads=4, projection="multiplicativ")
