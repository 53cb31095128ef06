"""Keys of patterns: derived from the value, the same in every process and for every copy."""

import copy
import pickle
import subprocess
import sys
from dataclasses import dataclass

import pytest
from hypothesis import given

from patterns.expressions import PRIMITIVES, expressions, quick
from weft.errors import Unsupported
from weft.patterns import (
    PATTERNS,
    Axis,
    Blocked,
    Causal,
    Global,
    Keys,
    PerHead,
    Predicate,
    RandomBlocks,
    Segments,
    Sink,
    Sliding,
    Strided,
    Window2d,
    pattern,
)
from weft.patterns.order import select

ONES = [
    Causal() & (Sliding(8) | ~Strided(3)),
    ~(Sliding(3) | Keys(first=1, at=(5, 9))),
    PerHead(Sliding(3), Causal() & Global(first=2)),
    Blocked(Window2d(8, 2) | Axis(8, "y"), 16),
    RandomBlocks(2, 16, 3),
    Segments((3, 4, 5)),
    Sink(),
]


@quick
@given(expressions(40, without=("predicate",)))
def test_the_text_gives_an_equal_pattern(one):
    assert pattern(one.spec) == one
    assert pattern(one.spec).key == one.key


@pytest.mark.parametrize("one", ONES, ids=str)
def test_copies_and_equal_patterns_have_one_key(one):
    for other in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert other == one
        assert hash(other) == hash(one)
        assert other.key == one.key == pattern(str(one)).key


def test_other_patterns_have_other_keys():
    keys = {
        one.key for one in (*ONES, Sliding(3), Sliding(4), Keys(first=4), Strided(3) | Sliding(8))
    }
    assert len(keys) == len(ONES) + 4, "one that forgets a setting or an order would be found twice"


def test_every_setting_is_written_also_one_that_is_the_default():
    """A default that changes in a later version must not change what a key means."""
    assert Sink().spec == "sink(first=4, last=0, at=[])"
    assert Axis(8).spec == "axis(width=8, axis='x')"


def test_keys_are_the_same_in_another_process():
    code = "import sys; from weft.patterns import pattern; print(pattern(sys.argv[1]).key)"
    for one in ONES[:2]:
        done = subprocess.run(
            [sys.executable, "-c", code, one.spec], capture_output=True, text=True
        )
        assert done.stdout.strip() == one.key, done.stderr


def test_selected_positions_have_the_same_digest_in_another_process():
    code = "from weft.patterns.order import select; print(select([1, 5, 9]).digest)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == select([1, 5, 9]).digest, done.stderr


@dataclass(frozen=True)
class Unregistered(Sliding):
    """A subclass that keeps the name of its parent."""


@pytest.mark.parametrize(
    "one",
    [Predicate(lambda i, j: i == j), Sliding(3) | Predicate(lambda i, j: i == j), Unregistered(3)],
)
def test_a_pattern_without_a_text_is_refused(one):
    with pytest.raises(Unsupported, match=r"no text form.*PATTERNS\.register"):
        _ = one.key


def test_every_primitive_is_tried():
    assert set(PATTERNS) - {"per_head"} == set(PRIMITIVES) - {"predicate"}
