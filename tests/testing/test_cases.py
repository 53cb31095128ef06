"""What the contract is checked on: configs made small, their variants, frames and paddings."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest
import torch

from weft.errors import WeftError
from weft.mixers import MIXERS
from weft.mixers.base import Traits
from weft.testing import cases, checks_for, exempt
from weft.testing.promises import altered
from weft.testing.streaming import splits


def traits(**given):
    return Traits(family="f", paper="p", time="n", memory="n", **given)


@dataclass(frozen=True, kw_only=True)
class Config:
    window: int = 512
    heads: int = 4
    kind: Literal["a", "b", "c"] = "a"
    sinks: bool = False
    rate: float = 100.0

    name: ClassVar[str] = "config"
    traits: ClassVar[Traits] = traits(causal=True)


@dataclass(frozen=True, kw_only=True)
class EvenBlocks:
    block: int = 64
    least: int = 32

    def __post_init__(self):
        if self.least < 32:
            raise WeftError(f"least is at least 32; got {self.least}")


def test_small_cuts_large_whole_numbers_only():
    assert cases.small(Config) == Config(window=8)


def test_small_keeps_what_the_rules_of_the_config_need():
    assert cases.small(EvenBlocks) == EvenBlocks(block=8, least=32)


def test_a_config_may_say_what_is_small():
    own = type("Own", (Config,), {"small": classmethod(lambda cls: cls(window=3))})
    assert cases.small(own) == own(window=3)


def test_variants_change_one_choice_at_a_time():
    base = Config(window=8)
    others = [Config(window=8, kind=kind) for kind in "bc"] + [Config(window=8, sinks=True)]
    found = cases.variants(Config)
    assert found[0] == base
    assert set(found) == {base, *others}
    assert len(found) == 4


def test_a_config_may_name_its_variants():
    own = type("Own", (Config,), {"variants": classmethod(lambda cls: [cls(), cls(window=1)])})
    assert cases.variants(own) == (own(), own(window=1))


@pytest.mark.parametrize("name", MIXERS)
def test_registered_mixers_have_distinct_variants(name):
    found = cases.variants(MIXERS[name])
    assert len(set(map(str, found))) == len(found) > 0


def test_frames_follow_the_traits():
    assert [frame.causal for frame in cases.frames(Config())] == [False, True]
    assert [frame.causal for frame in cases.frames(Config(), causal=True)] == [True]
    one_way = type("C", (), {"traits": traits(causal=True, bidirectional=False)})
    assert [frame.causal for frame in cases.frames(one_way)] == [True]
    assert [frame.causal for frame in cases.frames(type("C", (), {"traits": traits()}))] == [False]


def test_paddings_hold_the_same_real_tokens():
    lengths = [41, 17, 9, 1, 0]
    masks = cases.paddings(lengths, 41)
    assert set(masks) == {"right", "left", "inside"}
    for mask in masks.values():
        assert mask.sum(1).tolist() == lengths
    assert masks["right"][1].tolist() == [True] * 17 + [False] * 24
    assert masks["left"][1].tolist() == [False] * 24 + [True] * 17
    for row in (1, 2):
        places = masks["inside"][row].nonzero()[:, 0]
        assert (places.diff() > 1).any(), "padding lies between real tokens"


def test_tokens_are_the_same_each_time_and_differ_by_seed():
    assert torch.equal(cases.tokens(2, 3, 4), cases.tokens(2, 3, 4))
    assert not torch.equal(cases.tokens(2, 3, 4), cases.tokens(2, 3, 4, seed=1))


def test_building_leaves_the_random_state_alone():
    config = cases.small(MIXERS["full"])
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    cases.build(config, next(cases.frames(config)))
    assert torch.equal(torch.rand(4), expected)


def test_splits_cover_the_sequence():
    for pieces in splits(67):
        assert sum(pieces) == 67
        assert min(pieces) >= 1
    assert [1] * 67 in splits(67)
    assert [67] in splits(67)


def test_altered_moves_every_setting_that_can_move():
    moved = list(altered(Config()))
    for field in ("window", "heads", "sinks", "rate"):
        assert any(getattr(one, field) != getattr(Config(), field) for one in moved), field
    assert Config() not in moved


def test_exemptions_name_the_trait():
    config = Config()
    left_out = exempt(config)
    assert set(left_out) == {"streaming", "state_size", "state_formula", "cross", "marks"}
    assert left_out["streaming"] == "config does not stream"
    assert "causality" in dict(checks_for(config))
    closed = type("C", (), {"name": "c", "traits": traits(compiles=False, note="it sorts")})
    assert exempt(closed)["causality"] == "c is not causal: it sorts"
    assert exempt(closed)["compile"] == "c does not compile as one graph: it sorts"
