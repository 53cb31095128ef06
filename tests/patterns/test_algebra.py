"""|, & and ~: what they mean, which values are equal, and the text form."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patterns.expressions import cases, expressions, primitives, quick
from weft.errors import Unsupported, WeftError
from weft.patterns import (
    Causal,
    Dilated,
    Full,
    Global,
    Keys,
    PerHead,
    Segments,
    Sink,
    Sliding,
    Strided,
    pattern,
)
from weft.patterns.derive import mask
from weft.testing.patterns import check_every_nth, check_round_trip, check_traits, truth

M = 40
of_40 = expressions(M)


@given(a=of_40, b=of_40)
@quick
def test_operators_act_pair_by_pair(a, b):
    x, y = truth(a, M, M), truth(b, M, M)
    np.testing.assert_array_equal(truth(a | b, M, M), x | y)
    np.testing.assert_array_equal(truth(a & b, M, M), x & y)
    np.testing.assert_array_equal(truth(~a, M, M), ~x)


@given(a=of_40, b=of_40, c=of_40)
@quick
def test_equal_by_value(a, b, c):
    assert ~~a == a
    assert a | a == a == a & a
    assert a & Full() == a == Full() & a
    assert a | Full() == Full()
    assert (a | b) | c == a | (b | c)
    assert (a & b) & c == a & (b & c)
    assert hash((a | b) | c) == hash(a | (b | c))
    assert a == a.head(3, 8)


@given(a=primitives(M, without=["predicate"]), b=primitives(M))
@quick
def test_equal_patterns_read_the_same(a, b):
    again = pattern(str(a))  # equal, and another object
    assert (again == a, hash(again) == hash(a)) == (True, True)
    np.testing.assert_array_equal(truth(a, M, M), truth(again, M, M))
    # Patterns that read differently are not equal; those that read the same may have two names.
    alike = np.array_equal(truth(a, M, M), truth(b, M, M))
    assert alike or a != b
    assert (a == b) <= (hash(a) == hash(b))


def test_or_is_not_and():
    a, b = Causal(), Sliding(3)
    assert (a | b) != (a & b)
    assert Sliding(3) != Sliding(4) != Dilated(4, 1)
    assert Keys(at=(5, 3, 3)) == Keys(at=[3, 5])
    assert len({Sliding(3), Sliding(3), pattern("sliding(3)")}) == 1


@given(case=cases(without=["predicate"]))
@quick
def test_text_round_trip(case):
    check_round_trip(case[0])


def test_text_of_per_head():
    made = PerHead(Causal() & Sliding(3), ~(Strided(2) | Sink()))
    text = "per_head(causal & sliding(window=3), ~(strided(stride=2) | sink))"
    assert str(made) == text
    assert pattern(text) == made
    assert hash(pattern(text)) == hash(made)
    assert pattern(made) is made


@given(case=cases())
@quick
def test_traits_are_true(case):
    made, _, m = case
    check_traits(made, sizes=[(m, m)])


def test_traits_are_not_modest():
    assert (Sliding(3) & Causal()).causal
    assert (Causal() & Sliding(3) | Causal() & Sink()).causal
    assert not (Causal() | Sliding(3)).causal
    assert (Causal() & Sliding(3) | ~Strided(4)).relative
    assert not (Sliding(3) | Sink()).relative
    assert (Sink() | Keys(last=2)).needs_length


@given(case=cases(), step=st.integers(1, 9))
@quick
def test_every_nth(case, step):
    made, _, m = case
    check_every_nth(made, steps=[step], sizes=[(m, m)])


@pytest.mark.parametrize("step", [2, 3, 4, 6])
def test_every_nth_is_known_where_folding_needs_it(step):
    near, far = Causal() & Sliding(12), Causal() & Strided(step)
    assert (far & ~near).every_nth(step) is not None
    assert Dilated(5, step).every_nth(step) == Dilated(5, 1)
    assert Keys(first=3).every_nth(step) is None


def test_per_head_shares_heads_out_in_runs():
    shared = PerHead(Sliding(2), Causal())
    assert [shared.head(a, 6) for a in range(6)] == [Sliding(2)] * 3 + [Causal()] * 3
    inner = PerHead(shared, Full())
    assert [inner.head(a, 4) for a in range(4)] == [Sliding(2), Causal(), Full(), Full()]
    joined = Causal() & PerHead(Sliding(2), Strided(3))
    assert joined.head(1, 2) == Causal() & Strided(3)
    assert (~shared).head(0, 2) == ~Sliding(2)
    both = mask(shared, 5, heads=2).numpy()
    np.testing.assert_array_equal(both, [truth(Sliding(2), 5, 5), truth(Causal(), 5, 5)])


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: PerHead(), "per_head needs one pattern or more"),
        (lambda: PerHead(Causal(), 3), "per_head takes patterns, one for each run of heads; got 3"),
        (lambda: PerHead(Causal(), Full()).head(0, 3), "3 heads is not a multiple of 2 patterns"),
        (lambda: truth(PerHead(Causal()), 3, 3), "use pattern.head(a, heads) for one head"),
        (lambda: PerHead(Causal()).covers(None, None), "use pattern.head(a, heads) for one head"),
        (lambda: pattern("slidng(3)"), "no pattern named 'slidng'; did you mean 'sliding'"),
        (lambda: pattern("sliding"), "sliding needs window: give window=..."),
        (lambda: pattern("sliding(windw=3)"), "no setting 'windw'; did you mean 'window'?"),
        (lambda: pattern("sliding(1, 2)"), "sliding takes 1 settings by place"),
        (lambda: pattern("per_head(a=causal)"), "per_head takes its parts by place, not by name"),
        (
            lambda: pattern("3"),
            "a pattern is a spec such as `name(setting=1)`",
        ),
        (lambda: pattern("causal | 3"), "'|' does not apply to these values"),
        (lambda: pattern("causal & ("), "expected a name or a value"),
    ],
)
def test_bad_expressions(act, message):
    with pytest.raises(WeftError) as caught:
        act()
    assert message in str(caught.value)


def test_joining_with_something_else_is_a_type_error():
    for join in (lambda: Causal() | 3, lambda: "causal" & Causal()):
        with pytest.raises(TypeError):
            join()


def test_patterns_are_immutable():
    with pytest.raises(AttributeError):
        Sliding(3).window = 4
    assert hash(Segments([2, 3])) == hash(Segments((2, 3)))


def test_unsupported_is_a_value_error():
    assert issubclass(Unsupported, ValueError)
    assert Global(first=2).halves[1] == Keys(first=2)
