"""Columns at a time and pieces ahead: the same as one after another, errors and ends included."""

import threading

import pytest

from weft.events import threads
from weft.events.threads import ahead, for_each


@pytest.fixture(params=[1, 2])
def cores(request, monkeypatch):
    monkeypatch.setattr(threads, "cores", lambda: request.param)
    return request.param


def test_each_is_done_once(cores):
    found = []
    for_each(lambda a, b: found.append(a + b), range(50), range(50))
    assert sorted(found) == [2 * each for each in range(50)]


def test_an_error_is_raised(cores):
    with pytest.raises(ZeroDivisionError):
        for_each(lambda a: 1 / a, [1, 0, 2])


def test_items_come_in_order_and_the_next_is_made_meanwhile(cores):
    made = []

    def source():
        for each in range(5):
            made.append((each, threading.current_thread() is threading.main_thread()))
            yield each

    assert list(ahead(source())) == list(range(5))
    assert {here for _, here in made} == {cores == 1}


def test_an_error_of_the_source_is_raised_and_the_source_is_closed(cores):
    closed = []

    def source():
        try:
            yield 1
            yield 2
            raise ValueError("row 3")
        finally:
            closed.append(True)

    with pytest.raises(ValueError, match="row 3"):
        list(ahead(source()))
    assert closed == [True]
    walk = ahead(source())
    next(walk)
    walk.close()
    assert closed == [True, True]
