"""The growth of snakes: its random numbers, its law of turns, and the same bits without numba."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from weft.arena.tasks.pathfinder.growth import COMPILES, begin, below, extend, fits, word
from weft.arena.tasks.pathfinder.images import Drawing, draw
from weft.arena.tasks.pathfinder.plan import END, STEP, plan_of

SMALL = [(32, 14, 1), (32, 2, 5), (64, 4, 2), (128, 3, 2)]  # size, dashes, images


def sfc32(a, b, c, count):
    """Doty-Humphrey's generator on unsigned 32-bit words, its counter at 1."""
    a, b, c, counter = (np.uint32(each) for each in (a, b, c, 1))
    with np.errstate(over="ignore"):
        for _ in range(count):
            out = a + b + counter
            counter += np.uint32(1)
            a = b ^ (b >> np.uint32(9))
            b = c + (c << np.uint32(3))
            c = (c << np.uint32(21) | c >> np.uint32(11)) + out
            yield int(out)


@pytest.mark.parametrize("key", [(0, 0, 0), (1, 2, 3), (0xFFFFFFFF, 0x80000000, 0xFFFFFFFF)])
def test_the_generator_is_sfc32(key):
    state = np.zeros(4, np.int64)
    begin(state, np.array(key[:2]), key[2])
    assert [word(state) for _ in range(1000)] == list(sfc32(*key, 1015))[15:]


def test_neighbouring_streams_differ_and_are_even():
    state, key = np.zeros(4, np.int64), np.array([7, 7])
    draws = np.zeros((2000, 8), np.int64)
    for index in range(len(draws)):
        begin(state, key, index)
        draws[index] = [below(state, 10) for _ in range(8)]
    assert draws.min() == 0
    assert draws.max() == 9
    expected = draws.size / 10
    assert ((np.bincount(draws.ravel()) - expected) ** 2 / expected).sum() < 30  # p < 0.0005
    same = (draws[1:] == draws[:-1]).mean()
    assert abs(same - 0.1) < 4 * (0.09 / draws[1:].size) ** 0.5


def field(obstacle: bool):
    """A plan with much room, dash 0 in its middle, and dash 1 in its way or far off."""
    plan = plan_of(Drawing.of(size=256, dashes=2))
    middle, ahead = 128 * plan.scale, int(np.argmax(plan.shapes[:, END + 1]))
    step = plan.shapes[ahead, STEP : STEP + 2]
    place = 2 * step + [14, 0] if obstacle else [-200, -200]
    dashes = np.array([[0, 0, ahead], [*place, ahead], [0, 0, 0]])
    dashes[:2, :2] += middle
    return plan, dashes, dashes[0, :2] + step


@pytest.mark.parametrize("obstacle", [False, True], ids=["free", "obstacle"])
def test_turns_follow_their_weights_among_the_directions_that_fit(obstacle):
    plan, dashes, pivot = field(obstacle)
    after, weights = plan.turns[dashes[0, 2]].T
    free = [fits(plan.shapes, dashes, 2, 0, *pivot, direction) for direction in after]
    assert all(free) is not obstacle
    assert any(free)
    law = weights * free / (weights * free).sum()
    state, scratch = np.zeros(4, np.int64), np.zeros(plan.turns.shape[1], np.int64)
    begin(state, np.array([5, 6]), 0)
    counts = dict.fromkeys(after.tolist(), 0)
    for _ in range(4000):
        assert extend(plan.shapes, plan.turns, state, dashes, 2, 0, scratch)
        assert dashes[2, :2].tolist() == pivot.tolist()
        counts[int(dashes[2, 2])] += 1
    got = np.array([counts[direction] for direction in after.tolist()])
    assert distance(got, law) < 4
    assert distance(got, weights / weights.sum()) > 4 or not obstacle
    assert distance(got, np.full(len(law), 1 / len(law))) > 4


def distance(counts: np.ndarray, law: np.ndarray) -> float:
    """How many standard deviations χ² is above its mean."""
    expected = counts.sum() * law
    if counts[expected == 0].any():
        return np.inf
    some = expected > 0
    freedom = some.sum() - 1
    chi = ((counts - expected)[some] ** 2 / expected[some]).sum()
    return (chi - freedom) / (2 * freedom) ** 0.5


def fresh(program: str, *arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-W", "error", "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


DIGEST = """
import hashlib
from weft.arena.tasks.pathfinder.images import Drawing, draw
for size, dashes, count in {small}:
    images, labels = draw(Drawing.of(size=size, dashes=dashes), 5, 100, count, threads={threads})
    print(hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest())
"""


def digests(first: int) -> list[str]:
    pairs = [draw(Drawing.of(size=s, dashes=d), 5, first, count) for s, d, count in SMALL]
    return [hashlib.sha256(x.tobytes() + y.tobytes()).hexdigest() for x, y in pairs]


@pytest.mark.skipif(not COMPILES, reason="numba is not here, so all images come from plain Python")
def test_plain_python_draws_the_same_bits():
    without = "import sys; sys.modules['numba'] = None\n"
    done = fresh(without + DIGEST.format(small=SMALL, threads=2))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == digests(first=100)
    assert not {*done.stdout.split()} & {*digests(first=101)}


def test_plain_python_warns_of_many_images():
    program = "import sys; sys.modules['numba'] = None\n" + DIGEST.format(
        small=[(32, 2, 100)], threads=1
    )
    done = fresh(program)
    assert done.returncode == 1
    assert "UserWarning: numba cannot be imported" in done.stderr
    assert "pip install numba" in done.stderr


def test_numba_is_imported_when_images_are_drawn():
    done = fresh(
        "import sys, weft.arena.tasks.pathfinder.images as p; print('numba' in sys.modules)"
    )
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.long
def test_a_process_with_many_threads_exits_cleanly():
    done = fresh(DIGEST.format(small=[(32, 14, 2000), (128, 14, 500)], threads=16))
    assert (done.returncode, done.stderr) == (0, "")
