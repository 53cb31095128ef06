"""Spec strings: read, written and refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft import spec
from weft.errors import WeftError


class Call:
    """What `make` was asked for; joins like a pattern."""

    def __init__(self, name, args=(), kwargs=None):
        self.tree = (name, tuple(args), dict(kwargs or {}))

    def __or__(self, other):
        return joined("|", self, other)

    def __and__(self, other):
        return joined("&", self, other)

    def __invert__(self):
        return joined("~", self)

    def __eq__(self, other):
        return isinstance(other, Call) and self.tree == other.tree

    def __repr__(self):
        return f"Call{self.tree}"

    __hash__ = None


def joined(op, *parts):
    if not all(isinstance(part, Call) for part in parts):
        return NotImplemented
    return Call(op, parts)


def read(text):
    return spec.parse(text, Call)


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
        ("a | b & c", A | (B & C)),
        ("a & b | c", (A & B) | C),
        ("(a | b) & c", (A | B) & C),
        ("a | b | c", (A | B) | C),
        ("~a & b", (~A) & B),
        ("~(a & b)", ~(A & B)),
        ("~~a", ~~A),
        ("f(a | b)", Call("f", [A | B])),
    ],
)
def test_joins_as_python_does(text, value):
    assert read(text) == value


def test_reads_lists():
    assert spec.parse_list("a, f(1, 2), b", Call) == [A, Call("f", [1, 2]), B]
    assert spec.parse_list("a", Call) == [A]


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
        ("a | 3", "'|' does not join these two values", 1),
        ("~'a'", "'~' does not apply to this value", 1),
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
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet="abc _-|&(),=", max_size=8),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)
names = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: name not in {"true", "false", "none"}
)


@given(names, st.dictionaries(names, values, max_size=4))
def test_what_is_written_reads_back(name, settings):
    back = read(spec.write(name, settings))
    assert back == Call(name, [], settings)
    types = {key: type(value) for key, value in settings.items()}
    assert {key: type(value) for key, value in back.tree[2].items()} == types


@given(st.text(alphabet="ab()[],=|&~1.5'\" \n", max_size=12))
def test_any_text_reads_or_raises_our_error(text):
    with contextlib.suppress(WeftError):
        read(text)
