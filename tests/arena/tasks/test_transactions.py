"""Made-up clients: what defaults, what does not, and that only order tells them apart."""

import numpy as np
import pytest
import torch

from weft.arena.tasks.transactions.clients import (
    CASH,
    GAMBLING,
    NEAR,
    SIZES,
    Generator,
    Spells,
    _risky,
    best_gini,
    labelled,
)
from weft.arena.tasks.transactions.task import Transactions, write_parquet
from weft.training.scores.ranking import auc, gini


def spells(*made):
    kind, start, stop = (np.array(each)[None] for each in zip(*made, strict=True))
    return Spells(kind, start, stop)


@pytest.mark.parametrize(
    ("made", "risky"),
    [
        ([(GAMBLING, 10, 20), (CASH, 30, 40)], 1),
        ([(CASH, 10, 20), (GAMBLING, 30, 40)], 0),
        ([(GAMBLING, 10, 20), (CASH, 20 + NEAR, 130)], 1),
        ([(GAMBLING, 10, 20), (CASH, 21 + NEAR, 130)], 0),
        ([(GAMBLING, 10, 20), (GAMBLING, 25, 30), (CASH, 40, 50)], 2),
        ([(GAMBLING, 10, 20), (2, 30, 40)], 0),
        ([(-1, 10, 20), (CASH, 30, 40)], 0),
    ],
)
def test_cash_soon_after_gambling_is_risky(made, risky):
    assert _risky(spells(*made)).tolist() == [risky]


def test_a_client_follows_from_seed_and_number():
    one = Generator(3).clients(np.array([5, 900, 7]), np.zeros(3))
    two = Generator(3).clients(np.array([7, 5]), np.zeros(2))
    for mine, other in ((2, 0), (0, 1)):
        n = one.lengths[mine]
        assert n == two.lengths[other]
        np.testing.assert_array_equal(one.codes[mine, :n], two.codes[other, :n])
        np.testing.assert_array_equal(one.days[mine, :n], two.days[other, :n])
        assert one.labels[mine] == two.labels[other]
    other = Generator(4).clients(np.array([5]), np.zeros(1))
    assert other.lengths[0] != one.lengths[0]


def test_labels_are_known_without_transactions():
    index = np.arange(40)
    found = Generator(1).clients(index, np.ones(40))
    risk, labels = labelled(index, 1, late=True)
    np.testing.assert_allclose(risk, found.risk)
    np.testing.assert_array_equal(labels, found.labels)
    assert all(found.codes[..., k].max() < size for k, size in enumerate(SIZES))


def test_labels_are_drawn_with_the_probability():
    risk, labels = labelled(np.arange(20_000), 0, late=False)
    for low, high in ((0.0, 0.05), (0.05, 0.3), (0.3, 1.0)):
        chosen = (risk >= low) & (risk < high)
        expected, count = risk[chosen].mean(), chosen.sum()
        error = 4 * np.sqrt(expected * (1 - expected) / count)
        assert abs(labels[chosen].mean() - expected) < error


def test_gambling_and_cash_are_as_frequent_in_both_orders():
    draws = [Generator(0)._draws(i)[8:40] for i in range(4000)]
    from weft.arena.tasks.transactions.clients import _spells

    found = _spells(np.stack(draws), np.full(4000, 700))
    first = found.kind[:, :-1], found.kind[:, 1:]
    forward = ((first[0] == GAMBLING) & (first[1] == CASH)).sum()
    backward = ((first[0] == CASH) & (first[1] == GAMBLING)).sum()
    assert abs(forward - backward) < 4 * np.sqrt(forward + backward)


def test_the_best_gini_is_fixed():
    assert best_gini(20_000) == pytest.approx(0.75, abs=0.02)


def test_a_split_is_never_in_another():
    task = Transactions(train=30, valid=30, test=30, length=40)
    rows = [
        task.load(split).batch(np.arange(30)).x.numpy().tobytes() for split in ("train", "valid")
    ]
    assert rows[0] != rows[1]
    fixed = task.load("train").batch(np.array([3, 4]))
    again = task.load("train").batch(np.array([4]))
    assert torch.equal(fixed.x[1, : again.x.shape[1]], again.x[0])


def test_the_benchmark_as_a_file_of_events(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow", reason="events are read by pyarrow")
    from weft.arena.tasks import TASKS

    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "made.parquet"
    events = write_parquet(str(path), clients=120)
    shares = {"valid_share": 0.3, "test_share": 0.3}  # of 120, so that each split has both labels
    task = TASKS["events"](data=str(path), id="client", label="default", length=100, **shares)
    assert len(task.prepared.store.codes) == events
    assert task.inputs["channels"] == 26
    sizes = [len(task.load(split)) for split in ("train", "valid", "test")]
    assert sum(sizes) == 120
    assert min(sizes) > 0
    assert task.metric == "gini"


@pytest.mark.parametrize("ties", [False, True])
def test_auc_counts_pairs(ties):
    rng = np.random.default_rng(0)
    scores = rng.integers(5, size=80).astype(float) if ties else rng.random(80)
    labels = rng.integers(2, size=80)
    up, down = scores[labels == 1][:, None], scores[labels == 0][None]
    pairs = (up > down).mean() + (up == down).mean() / 2
    assert auc(scores, labels) == pytest.approx(pairs, abs=1e-12)
    assert gini(-scores, labels) == pytest.approx(-gini(scores, labels), abs=1e-12)


def test_clients_do_not_depend_on_those_beside_them():
    """Means are over a client's own transactions, however long the others are."""
    together = Generator(0).clients(np.arange(6), np.zeros(6))
    for row in np.argsort(together.lengths)[:2]:
        alone = Generator(0).clients(np.array([row]), np.zeros(1))
        n = alone.lengths[0]
        np.testing.assert_array_equal(alone.numbers[0], together.numbers[row, :n])


@pytest.mark.parametrize("split", ["train", "test"])
def test_stored_clients_are_those_that_are_made(split, tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    sizes = {"train": 30, "valid": 30, "test": 30, "length": 90}
    made, kept = (Transactions(**sizes, stored=stored).load(split) for stored in (False, True))
    index = np.array([3, 29, 0, 11])
    one, two = made.batch(index), kept.batch(index)
    assert torch.equal(one.x, two.x)
    assert torch.equal(one.y, two.y)
    assert (one.valid is None) == (two.valid is None)
    np.testing.assert_array_equal(made.labels, kept.labels)


@pytest.mark.long
def test_clients_that_several_processes_make(tmp_path, monkeypatch):
    from weft.arena.tasks.transactions import stored

    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    alone = stored.stored("valid", 40, 0)
    monkeypatch.setattr(stored, "ALONE", 10)
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "other"))
    stored.stored.cache_clear()
    together = stored.stored("valid", 40, 0)
    for name in ("starts", "codes", "numbers", "times", "until"):
        np.testing.assert_array_equal(getattr(alone[0], name), getattr(together[0], name))
    np.testing.assert_array_equal(alone[1], together[1])


def test_amounts_are_those_of_a_bank():
    found = Generator(0).clients(np.arange(40), np.zeros(40))
    real = np.arange(found.codes.shape[1]) < found.lengths[:, None]
    amount, balance = found.numbers[..., 0][real], found.numbers[..., 1][real]
    assert 10 < np.median(amount) < 100
    assert amount.max() < 1e6
    assert np.abs(balance).max() < 1e6
    dearness = found.codes[..., 0][real].astype(int) % 9  # of the merchant category
    middle = [np.median(np.log(amount[dearness == k])) for k in range(9)]
    np.testing.assert_allclose(np.diff(middle), 0.25, atol=0.15)
