"""Every modification works with every other: all pairs of settings, whole products at length."""

import dataclasses
import itertools

import pytest
from combinations import (
    AXES,
    MAIN,
    REGISTRIES,
    SPECS,
    Combination,
    check,
    config,
    own,
    pairwise,
    refusal,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import WeftError

PAIRS = pairwise(AXES)


def holds(c: Combination) -> None:
    """It works, or is refused for the stated reason."""
    reason = refusal(c)
    if reason is None:
        check(c)
        return
    with pytest.raises(WeftError, match=reason):
        config(c).build()


@pytest.mark.parametrize("family", list(REGISTRIES))
def test_every_entry_of_every_registry_takes_part(family):
    assert set(SPECS[family]) == set(own(REGISTRIES[family])) == set(AXES[family])


@pytest.mark.parametrize("c", PAIRS, ids=str)
def test_any_two_settings(c):
    check(c)


def test_the_pairs_are_all_there():
    met = {pair for c in PAIRS for pair in itertools.combinations(values_of(c), 2)}
    for (a, values), (b, others) in itertools.combinations(AXES.items(), 2):
        for one, two in itertools.product(values, others):
            c = Combination(**{"norm": "none pre"} | {a: one, b: two})
            assert {((a, one), (b, two)), ((b, two), (a, one))} & met or refusal(c) is not None


def values_of(c: Combination) -> list[tuple[str, object]]:
    return list(dataclasses.asdict(c).items())


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.builds(Combination, **{name: st.sampled_from(values) for name, values in AXES.items()}))
def test_whatever_is_combined_works_or_is_refused(c):
    holds(c)


@pytest.mark.long
@pytest.mark.parametrize("feedforward", MAIN["feedforward"])
@pytest.mark.parametrize("kind", MAIN["kind"])
def test_the_whole_product(kind, feedforward):
    rest = {k: v for k, v in MAIN.items() if k not in ("kind", "feedforward")}
    for values in itertools.product(*rest.values()):
        holds(
            Combination(kind=kind, feedforward=feedforward, **dict(zip(rest, values, strict=True)))
        )


def test_a_broken_part_is_found():
    """A sublayer whose step forgets the residual factor."""
    from weft.models.stack.sublayer import Sublayer

    class Forgets(Sublayer):
        def step(self, x, given, state):
            y, state = self.call_step(self.norm(x), given, state)
            return y, state

    whole = Sublayer.step
    c = Combination(residual="rezero")
    check(c)
    try:
        Sublayer.step = Forgets.step
        with pytest.raises(AssertionError, match="not close"):
            check(c)
    finally:
        Sublayer.step = whole
