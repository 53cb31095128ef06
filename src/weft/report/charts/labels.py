"""Where to put the names of circles, so that none covers another name or a circle's centre."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Box:
    """A rectangle, by its left upper corner."""

    x: float
    y: float
    width: float
    height: float

    def overlaps(self, other: Box, gap: float = 0.0) -> bool:
        """Whether the two share a point, or come closer than `gap`."""
        return (
            self.x < other.x + other.width + gap
            and other.x < self.x + self.width + gap
            and self.y < other.y + other.height + gap
            and other.y < self.y + self.height + gap
        )

    def shared(self, other: Box) -> float:
        """The area that both cover."""
        wide = min(self.x + self.width, other.x + other.width) - max(self.x, other.x)
        high = min(self.y + self.height, other.y + other.height) - max(self.y, other.y)
        return max(wide, 0.0) * max(high, 0.0)

    def inside(self, frame: Box) -> bool:
        """Whether it lies within the frame."""
        return (
            self.x >= frame.x
            and self.y >= frame.y
            and self.x + self.width <= frame.x + frame.width
            and self.y + self.height <= frame.y + frame.height
        )


@dataclass(frozen=True)
class Circle:
    """A circle and the size of its name."""

    x: float
    y: float
    radius: float
    width: float
    height: float


def body(circle: Circle) -> Box:
    """A square about as large as the circle."""
    half = 0.85 * circle.radius
    return Box(circle.x - half, circle.y - half, 2 * half, 2 * half)


def place(
    circles: Sequence[Circle], frame: Box, taken: Sequence[Box] = (), avoid: Sequence[Box] = ()
) -> list[Box | None]:
    """A box for the name of each circle, near to it; None where there is no room nearby.

    Names never overlap each other or what is `taken`. They cover circles and what to `avoid` only
    where there is no other place nearby.
    """
    taken = list(taken)
    found: dict[int, Box | None] = {}
    hearts = [Box(c.x - 5, c.y - 5, 10, 10) for c in circles]
    bodies = [*avoid, *map(body, circles)]
    for at in sorted(range(len(circles)), key=lambda at: -circles[at].radius):
        found[at] = _first_free(circles[at], frame, (bodies, hearts), taken)
        taken += [box] if (box := found[at]) else []
    return [found[at] for at in range(len(circles))]


def _first_free(
    circle: Circle, frame: Box, avoided: Sequence[Sequence[Box]], taken: Sequence[Box]
) -> Box | None:
    """The nearest place that avoids all circles, else their centres, else only other names."""
    fallbacks: dict[int, Box] = {}
    for box in _candidates(circle):
        if not box.inside(frame) or any(box.overlaps(other, 2.0) for other in taken):
            continue
        covered = [any(box.overlaps(other) for other in obstacles) for obstacles in avoided]
        rank = covered.index(False) if False in covered else len(covered)
        if rank == 0:
            return box
        fallbacks.setdefault(rank, box)
    return fallbacks[min(fallbacks)] if fallbacks else None


def _candidates(circle: Circle) -> Iterator[Box]:
    """Beside, above and below first, then around in growing circles."""
    w, h = circle.width, circle.height
    for distance in (5, 12, 24, 40, 60, 84, 110):
        reach = circle.radius + distance
        for turn in (0, 4, 6, 2, 7, 1, 5, 3):
            angle = math.pi * turn / 4
            dx, dy = math.cos(angle), math.sin(angle)
            x = circle.x + reach * dx + (0 if dx > 0.1 else -w if dx < -0.1 else -w / 2)
            y = circle.y + reach * dy + (0 if dy > 0.1 else -h if dy < -0.1 else -h / 2)
            yield Box(x, y, w, h)
