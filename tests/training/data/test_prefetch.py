"""Batches prepared ahead: the same ones, in any order of asking, and errors come through."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tiny_runs import examples

from weft.training import Shuffled
from weft.training.data import prefetch as feeds
from weft.training.data.prefetch import Prefetch


class Ahead(Prefetch):
    """Prepares ahead without a GPU."""

    def __init__(self, source, ahead):
        super().__init__(source, torch.device("cpu"), 0)
        self.ahead, self._pool = ahead, ThreadPoolExecutor(1)


@pytest.fixture(autouse=True)
def _no_pinning(monkeypatch):
    monkeypatch.setattr(feeds, "pinned", lambda batch: batch)


@pytest.mark.parametrize("ahead", [1, 2, 5])
@pytest.mark.parametrize("order", [range(8), [3, 4, 5], [0, 1, 7, 8, 2, 3, 3]], ids=str)
def test_ahead_gives_what_the_source_gives(ahead, order):
    source = Shuffled(examples(), 4)
    feed = Ahead(source, ahead)
    for step in order:
        assert torch.equal(feed.batch(step).x, source.batch(step).x)
    feed.close()


def test_rows_from_short_to_long():
    source = Shuffled(examples(), 4)
    feed = Prefetch(source, torch.device("cpu"), 0, by_length=True)
    assert feed.batch(3).reach == tuple(sorted(source.batch(3).valid.sum(1).tolist()))
    assert Prefetch(source, torch.device("cpu"), 0).batch(3).reach is None
    few = Prefetch(source, torch.device("cpu"), 0, by_length=True, widths=1)
    width = source.batch(3).x.shape[1]
    assert few.batch(3).reach == (width,) * 4


def test_on_a_cpu_nothing_is_prepared_ahead():
    asked = []

    class Asked:
        def batch(self, step):
            asked.append(step)
            return Shuffled(examples(), 4).batch(step)

    Prefetch(Asked(), torch.device("cpu"), 2).batch(5)
    assert asked == [5]


def test_errors_come_through():
    class Broken:
        def batch(self, step):
            raise OSError(f"no batch {step}")

    feed = Ahead(Broken(), 2)
    with pytest.raises(OSError, match="no batch 3"):
        feed.batch(3)
    feed.close()
