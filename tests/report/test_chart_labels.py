"""Names of circles do not overlap, whatever the circles do."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.report.charts.labels import Box, Circle, place

FRAME = Box(0, 0, 600, 400)
circles = st.lists(
    st.builds(
        Circle,
        x=st.floats(0, 600),
        y=st.floats(0, 400),
        radius=st.floats(3, 40),
        width=st.floats(10, 150),
        height=st.just(15),
    ),
    max_size=25,
)


def check(boxes, frame=FRAME):
    """Apart, and inside."""
    found = [box for box in boxes if box]
    for a, b in combinations(found, 2):
        apart = (
            a.x + a.width <= b.x
            or b.x + b.width <= a.x
            or a.y + a.height <= b.y
            or b.y + b.height <= a.y
        )
        assert apart, f"{a} and {b}"
    for box in found:
        assert box.x >= frame.x
        assert box.x + box.width <= frame.x + frame.width
        assert box.y >= frame.y
        assert box.y + box.height <= frame.y + frame.height


@given(circles)
def test_names_are_apart(some):
    check(place(some, FRAME))


def test_names_that_sit_beside_their_circles_would_overlap():
    crowd = [Circle(300, 200 + at, 20, 80, 15) for at in range(4)]
    beside = [Box(c.x + c.radius, c.y, c.width, c.height) for c in crowd]
    with pytest.raises(AssertionError):
        check(beside)
    found = place(crowd, FRAME)
    check(found)
    assert all(found)


def test_a_lone_name_stands_at_its_circle():
    (box,) = place([Circle(100, 100, 20, 60, 15)], FRAME)
    assert box.x - 120 < 8
    assert abs(box.y + box.height / 2 - 100) < 1


def test_what_is_taken_stays_free():
    taken = Box(120, 80, 200, 40)
    (box,) = place([Circle(100, 100, 20, 60, 15)], FRAME, [taken])
    check([box, taken])


def test_a_full_frame_leaves_names_out():
    assert place([Circle(5, 5, 3, 100, 15)], Box(0, 0, 50, 10)) == [None]


def test_shared_area():
    assert Box(0, 0, 10, 10).shared(Box(5, 5, 10, 10)) == 25
    assert Box(0, 0, 10, 10).shared(Box(10, 0, 5, 5)) == 0
