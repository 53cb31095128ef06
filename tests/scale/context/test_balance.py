"""The balance of shards, chosen by the pairs that patterns let see each other."""

import pytest
from torch import nn

from weft.mixers import MIXERS, Frame
from weft.scale.context import Shards
from weft.scale.context.balance import balance_for
from weft.scale.context.view import view


def layers(*mixers, causal=True, length=256, **frame):
    given = Frame(dim=16, heads=4, length=length, causal=causal, **frame)
    return nn.ModuleList(MIXERS.parse(each).build(given) for each in mixers)


@pytest.mark.parametrize(
    ("mixers", "causal", "wanted"),
    [
        (["full"], True, "head_tail"),
        (["full"], False, "none"),
        (["sliding_window(window=8)"], True, "none"),
        (["sliding_window(window=8)", "full"], True, "head_tail"),
        (["axial(width=16)"], True, "head_tail"),
        (["full", "sru"], True, "none"),
        (["full", "routing"], True, "none"),
    ],
)
def test_patterns_decide(mixers, causal, wanted):
    assert balance_for(layers(*mixers, causal=causal), 4) == wanted


def test_it_needs_a_length_that_fills_two_runs_a_rank():
    assert balance_for(layers("full", length=None), 4) == "none"
    assert balance_for(layers("full", length=7), 4) == "none"
    assert balance_for(layers("full", length=8), 4) == "head_tail"


def test_the_busiest_rank_has_as_much_as_any_other():
    (pattern,) = {each.pattern for each in layers("full")}
    shares = [each.pairs for each in view(pattern, 256, 4, balance="head_tail").ranks]
    assert max(shares) - min(shares) < 1e-6
    assert max(each.pairs for each in view(pattern, 256, 4).ranks) > 0.4
    assert Shards(256, 4, "head_tail").runs_of(0) == (0, 7)
