"""Spec strings: read, written and refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft import spec
from weft.errors import WeftError

read = spec.parse


def Call(name, args=(), kwargs=None):
    return spec.Call(name, tuple(args), dict(kwargs or {}))


def Or(*parts):
    return spec.Join("|", parts)


def And(*parts):
    return spec.Join("&", parts)


def Not(part):
    return spec.Join("~", (part,))


A, B, C = Call("a"), Call("b"), Call("c")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("full", Call("full")),
        ("full()", Call("full")),
        (" full ( ) ", Call("full")),
        ("longformer(window=512)", Call("longformer", [], {"window": 512})),
        ("sliding(512)", Call("sliding", [512])),
        ("f(1, 2, x=3,)", Call("f", [1, 2], {"x": 3})),
        (
            "f(x=-3, y=+2.5, z=1e-3, w=1_000)",
            Call("f", [], {"x": -3, "y": 2.5, "z": 1e-3, "w": 1000}),
        ),
        ("f(x='a b', y=\"c\")", Call("f", [], {"x": "a b", "y": "c"})),
        ("f(true, False, NONE)", Call("f", [True, False, None])),
        ("f(x=[1, 2], y=[])", Call("f", [], {"x": (1, 2), "y": ()})),
        ("f(x=[[1], [2, 3]])", Call("f", [], {"x": ((1,), (2, 3))})),
        ("f(x=g(y=1))", Call("f", [], {"x": Call("g", [], {"y": 1})})),
        ("global(first=64)", Call("global", [], {"first": 64})),
        ("(a)", A),
    ],
)
def test_reads(text, value):
    assert read(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a | b & c", Or(A, And(B, C))),
        ("a & b | c", Or(And(A, B), C)),
        ("(a | b) & c", And(Or(A, B), C)),
        ("a | b | c", Or(A, B, C)),
        ("~a & b", And(Not(A), B)),
        ("~(a & b)", Not(And(A, B))),
        ("~~a", Not(Not(A))),
        ("f(a | b)", Call("f", [Or(A, B)])),
        ("a | 3", Or(A, 3)),
    ],
)
def test_joins_as_python_does(text, value):
    assert read(text) == value


def test_reads_lists():
    assert spec.parse_list("a, f(1, 2), b") == [A, Call("f", [1, 2]), B]
    assert spec.parse_list("a") == [A]


@pytest.mark.parametrize(
    ("text", "what", "column"),
    [
        ("", "expected a name or a value", 1),
        ("full(", "expected a name or a value", 6),
        ("f(1", "expected ')'", 4),
        ("f(1))", "expected the end", 5),
        ("f g", "expected the end", 3),
        ("f(x=)", "expected a name or a value", 5),
        ("f(x=1, x=2)", "'x' is given twice", 10),
        ("f(1; 2)", "unexpected character", 4),
        ("a |", "expected a name or a value", 4),
        ("[x=1]", "expected ']'", 3),
        ('f("\\d")', "an unknown escape; 'single quotes' take a text literally,", 3),
        ("f(" + "9" * 31 + ")", "a whole number of more than 30 digits", 3),
        ("f('open)", "unexpected character", 3),
    ],
)
def test_says_what_is_wrong_and_where(text, what, column):
    with pytest.raises(WeftError) as caught:
        read(text)
    message = str(caught.value)
    assert message.startswith(f"{what} at column {column} of {text!r}")
    assert "longformer(window=512)" in message, "the way out is missing"


def test_runs_no_code():
    with pytest.raises(WeftError):
        read("__import__('os').system('true')")
    assert read("__import__('os')") == Call("__import__", ["os"]), "a name is only a name"


def test_writes_the_bare_name_without_settings():
    assert spec.write("full", {}) == "full"


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)
names = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: name not in {"true", "false", "none", "inf"}
)


@given(names, st.dictionaries(names, values, max_size=4))
def test_what_is_written_reads_back(name, settings):
    back = read(spec.write(name, settings))
    assert back == Call(name, [], settings)
    types = {key: type(value) for key, value in settings.items()}
    assert {key: type(value) for key, value in back.kwargs.items()} == types


@given(st.text(alphabet="ab()[],=|&~1.5'\" \n", max_size=12))
def test_any_text_reads_or_raises_our_error(text):
    with contextlib.suppress(WeftError):
        read(text)


@pytest.mark.parametrize(
    "text", ["(" * 101 + "a" + ")" * 101, "~" * 101 + "a", "[" * 101 + "]" * 101]
)
def test_what_is_nested_too_deeply_is_refused(text):
    with pytest.raises(WeftError, match="more than 100 levels, one inside the other,"):
        read(text)
    assert read("(" * 99 + "a" + ")" * 99) == A


def test_a_text_that_is_too_long_is_refused():
    with pytest.raises(WeftError, match="up to 100,000 characters; this one has 100,001"):
        read("a" * 100_001)


def test_a_long_chain_is_one_join():
    parts = read(" | ".join(["a"] * 20_000)).parts
    assert len(parts) == 20_000
