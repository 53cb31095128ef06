"""How the snakes of a Pathfinder image grow: loops over integers, compiled where numba is there.

Everything here reads a `Plan` (`pathfinder_plan.py`), small integers made once per drawing, and a
generator of 32-bit words that starts from (seed, index). There is no floating-point number and no
shared state, so compiled code and plain Python give the same bits, in any number of threads.

A *dash* is (y, x, direction): the first antialias cell of its pivot's pixel, and a row of the
plan's tables. It begins `margin` beyond the pivot; the next pivot is `margin` beyond its end.

The generator is sfc32 of C. Doty-Humphrey's PractRand, https://pracrand.sourceforge.net
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.arena.tasks.pathfinder.plan import (
    BOTTOM,
    END,
    INK,
    LEFT,
    RIGHT,
    ROOM,
    SPANS,
    START,
    STEP,
    TOP,
)

try:
    from numba import njit
except ImportError:
    njit = None
COMPILES = njit is not None


def compiled(function: Any) -> Any:
    """Compile it where numba is there; else it stays as it is: slow, and the same images."""
    # Not cached on disk: compilation takes seconds, and the folder of a package may be read-only.
    return function if njit is None else njit(nogil=True)(function)


_MASK = 0xFFFFFFFF
_WARM_UP = 15  # words dropped, until seed and index are mixed
PAIR_TRIALS = 200_000  # growths of the two long snakes before the setting counts as impossible
SNAKE_TRIALS = 5  # growths of one distractor
SEED_TRIALS = 256  # random places tried for the first dash of a distractor


@compiled
def word(state):
    """The next 32 random bits."""
    out = (state[0] + state[1] + state[3]) & _MASK
    state[3] = (state[3] + 1) & _MASK
    state[0] = state[1] ^ (state[1] >> 9)
    state[1] = (state[2] + (state[2] << 3)) & _MASK
    state[2] = ((((state[2] << 21) & _MASK) | (state[2] >> 11)) + out) & _MASK
    return out


@compiled
def begin(state, key, index):
    """Start the stream of image `index` under a key of two words."""
    state[0], state[1], state[2], state[3] = key[0], key[1], index, 1
    for _ in range(_WARM_UP):
        word(state)


@compiled
def below(state, n):
    """A random integer of 0 .. n - 1, n < 2^31; no value is off by more than n / 2^32."""
    return (word(state) * n) >> 32


@compiled
def overlap(shapes, y, x, old, new):
    """Whether a dash of direction `new`, y cells below and x beside one of `old`, shares a cell."""
    if shapes[new, LEFT] + x > shapes[old, RIGHT] or shapes[new, RIGHT] + x < shapes[old, LEFT]:
        return False
    top = max(shapes[old, TOP], shapes[new, TOP] + y)
    bottom = min(shapes[old, BOTTOM], shapes[new, BOTTOM] + y)
    i, j = SPANS + 2 * (top - shapes[old, TOP]), SPANS + 2 * (top - y - shapes[new, TOP])
    for _ in range(top, bottom + 1):
        if shapes[old, i] <= shapes[new, j + 1] + x and shapes[new, j] + x <= shapes[old, i + 1]:
            return True
        i, j = i + 2, j + 2
    return False


@compiled
def fits(shapes, dashes, number, last, y, x, direction):
    """Whether a dash, with its margin, is inside the picture and off dashes 0 .. number - 1.

    Dash `last`, out of which it grows, does not count; `number` is none.
    """
    if y < shapes[direction, ROOM] or x < shapes[direction, ROOM + 1]:
        return False
    if y > shapes[direction, ROOM + 2] or x > shapes[direction, ROOM + 3]:
        return False
    for i in range(number):
        down, right = y - dashes[i, 0], x - dashes[i, 1]
        if i != last and overlap(shapes, down, right, dashes[i, 2], direction):
            return False
    return True


@compiled
def place(dashes, number, y, x, direction):
    """Write down dash `number`."""
    dashes[number, 0], dashes[number, 1], dashes[number, 2] = y, x, direction


@compiled
def extend(shapes, turns, state, dashes, number, last, weights):
    """Grow dash `number` out of dash `last`; whether it found a place. Overwrites `weights`.

    A direction that does not fit is struck out and another one drawn, which is drawing among those
    that fit, without testing them all.
    """
    before, total = dashes[last, 2], 0
    y, x = dashes[last, 0] + shapes[before, STEP], dashes[last, 1] + shapes[before, STEP + 1]
    for i in range(len(weights)):
        weights[i] = turns[before, i, 1]
        total += weights[i]
    while total > 0:
        left, choice = below(state, total), 0
        while left >= weights[choice]:
            left -= weights[choice]
            choice += 1
        direction = turns[before, choice, 0]
        if fits(shapes, dashes, number, last, y, x, direction):
            place(dashes, number, y, x, direction)
            return True
        total -= weights[choice]
        weights[choice] = 0
    return False


@compiled
def sow(plan, state, dashes, number, y, x, margin):
    """Put a first dash that begins at cell (y, x), in a random direction; whether it fits."""
    count = plan.first[margin + 1] - plan.first[margin]
    direction = plan.first[margin] + below(state, count)
    y, x = y - plan.shapes[direction, START], x - plan.shapes[direction, START + 1]
    if not fits(plan.shapes, dashes, number, number, y, x, direction):
        return False
    place(dashes, number, y, x, direction)
    return True


@compiled
def pair(plan, state, dashes, margin, weights):
    """Grow the long snakes in turns, dashes 0, 2, 4 ... and 1, 3, 5 ...; whether both are whole."""
    border = 2 * plan.seed_distance
    y = (border + below(state, plan.size - 2 * border)) * plan.scale
    x = (border + below(state, plan.size - 2 * border)) * plan.scale
    for number in range(2):
        if not sow(plan, state, dashes, number, y, x, margin):
            return False
        apart = below(state, len(plan.ring))
        y, x = y + plan.ring[apart, 0], x + plan.ring[apart, 1]
    shapes, turns = plan.shapes, plan.turns
    for number in range(2, 2 * plan.dashes):
        if not extend(shapes, turns, state, dashes, number, number - 2, weights):
            return False
    return True


@compiled
def distractor(plan, state, dashes, number, margin, weights):
    """Grow a distractor, dashes `number` onwards, at a random free place; whether it is whole."""
    for _ in range(SEED_TRIALS):
        y, x = below(state, plan.size) * plan.scale, below(state, plan.size) * plan.scale
        if sow(plan, state, dashes, number, y, x, margin):
            break
    else:
        return False
    for new in range(number + 1, number + plan.distractor_dashes):
        if not extend(plan.shapes, plan.turns, state, dashes, new, new - 1, weights):
            return False
    return True


@compiled
def grow(plan, state, dashes, margin):
    """Grow all snakes of an image; how many dashes there are, 0 where the long ones never fit."""
    weights = np.empty(plan.turns.shape[1], np.int64)
    for _ in range(PAIR_TRIALS):
        if pair(plan, state, dashes, margin, weights):
            break
    else:
        return 0
    number = 2 * plan.dashes
    for _ in range(plan.distractors):
        for _ in range(SNAKE_TRIALS):
            if distractor(plan, state, dashes, number, margin, weights):
                number += plan.distractor_dashes
                break
    return number


@compiled
def stamp(image, ink, since, until, y, x):
    """Draw ink at a pixel; the brighter wins, what lies outside is cut off."""
    for i in range(since, until):
        row, column = y + ink[i, 0], x + ink[i, 1]
        if 0 <= row < len(image) and 0 <= column < len(image):
            image[row, column] = max(image[row, column], ink[i, 2])


@compiled
def mark(plan, dashes, label, snake, discs):
    """Disc pixels (2, 2): where `snake` begins, and where it (label 1) or its twin (0) ends."""
    twin = snake if label == 1 else 1 - snake
    tail, head = dashes[snake], dashes[2 * plan.dashes - 2 + twin]
    for axis in range(2):
        discs[0, axis] = (tail[axis] + plan.shapes[tail[2], START + axis]) // plan.scale
        discs[1, axis] = (head[axis] + plan.shapes[head[2], END + axis]) // plan.scale


@compiled
def draw_image(plan, key, index, image, dashes, discs):
    """Draw one image on black; its label and its dashes, 0 where the setting is impossible."""
    state = np.empty(4, np.int64)
    begin(state, key, index)
    label, snake = below(state, 2), below(state, 2)
    count = grow(plan, state, dashes, below(state, len(plan.first) - 1))
    if count == 0:
        return label, 0
    for i in range(count):
        y, x, shape = dashes[i, 0] // plan.scale, dashes[i, 1] // plan.scale, dashes[i, 2]
        stamp(image, plan.ink, plan.shapes[shape, INK], plan.shapes[shape, INK + 1], y, x)
    mark(plan, dashes, label, snake, discs)
    for i in range(2):
        stamp(image, plan.ink, plan.disc, len(plan.ink), discs[i, 0], discs[i, 1])
    return label, count


@compiled
def draw_images(plan, key, first, most_dashes, images, labels):
    """Draw images first .. on black; how many were drawn before one that is impossible."""
    dashes = np.zeros((most_dashes, 3), np.int64)
    discs = np.zeros((2, 2), np.int64)
    for i in range(len(images)):
        label, count = draw_image(plan, key, first + i, images[i], dashes, discs)
        if count == 0:
            return i
        labels[i] = label
    return len(images)
