"""Made-up clients of a bank: transactions, and a default that depends on spells of behaviour.

A client has about 700 transactions in a year (50 to 1,500): everyday ones, and *spells*, runs of 6
to 14 transactions of one kind at places that nothing else tells. There are four kinds: gambling,
cash advances, travel and medicine. The log-odds of default are

    β₀ + β₁ · min(risky, 2) + β₂ · stress + β₃ · [the year is late]

    risky    gambling spells that a spell of cash advances follows within 80 transactions
    stress   a trait of the client that moves the sizes of its amounts, a little

A cash advance *before* gambling, or far behind it, means nothing, and both orders are made equally
often: counts of categories do not tell them apart, and neither do places. Moving all transactions
changes nothing. The label is drawn with that probability, so no model can rank better than the
probability itself does: `best_gini`.

Every client follows from (seed, number) alone; a million of them need no memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from weft.training.scores.ranking import gini

VERSION = 3  # of the clients: a change of any number below is another benchmark
SHORTEST, LONGEST, MEAN = 50, 1500, 700
SPREAD = 0.45  # of the logarithm of the number of transactions
YEAR = 365.0
KINDS = 4  # of spells: gambling, cash advances, travel, medicine
GAMBLING, CASH = 0, 1
SPELLS = 6  # at most, in a client
KIND_SHARES = (0.3, 0.3, 0.1, 0.1)  # of the kinds; else there is no spell
RUN = (6, 14)  # transactions of a spell
NEAR = 80  # transactions within which cash follows gambling
WITHIN = 0.8  # share of a spell's transactions that are of its kind
CODES = 8  # merchant categories of each kind, the last ones
BASE, PER_RISKY, PER_STRESS, LATE = -3.6, 3.2, 0.6, 0.3
MOST_RISKY = 2
SIZES = (104, 6, 40, 4, 12, 3, 120, 24, 2, 5)  # values of the ten categories
NAMES = (
    *("mcc", "kind", "city", "channel", "currency", "card"),
    *("merchant", "country", "sign", "terminal"),
)
NUMBERS = (
    *("amount", "balance", "fee", "distance", "cashback"),
    *("limit_share", "instalments", "rate", "wait", "rank"),
)
DRAWS = 16  # uniform numbers of each transaction
OWN_DRAWS = 64  # of each client


class MadeUpClients(NamedTuple):
    """Some clients; transactions beyond `lengths` are padding."""

    codes: np.ndarray  # (b, n, 10) uint8
    numbers: np.ndarray  # (b, n, 10) float32
    days: np.ndarray  # (b, n) float64, from the start of the client's year
    lengths: np.ndarray  # (b,)
    risk: np.ndarray  # (b,) the probability of default
    labels: np.ndarray  # (b,) int64


@dataclass(frozen=True)
class Generator:
    """Clients by their numbers."""

    seed: int = 0
    longest: int = LONGEST

    def clients(self, index: np.ndarray, late: np.ndarray) -> MadeUpClients:
        """The clients (b,) of these numbers; `late` (b,) are out of time."""
        b = len(index)
        draws = [self._draws(int(number)) for number in index]
        own = np.stack([each[:OWN_DRAWS] for each in draws])  # (b, 64)
        lengths = _lengths(own[:, 0], self.longest)
        n = int(lengths.max())
        each = np.stack([d[OWN_DRAWS:].reshape(LONGEST, DRAWS)[:n] for d in draws])  # (b, n, 16)
        spells = _spells(own[:, 8:40], lengths)
        kind = _kind_of(spells, n)  # (b, n): 0 everyday, 1 + the kind of a spell
        stress = np.sqrt(12) * (own[:, 1] - 0.5)  # (b,) unit variance
        risky = np.minimum(_risky(spells), MOST_RISKY)
        odds = BASE + PER_RISKY * risky + PER_STRESS * stress + LATE * late
        risk = 1 / (1 + np.exp(-odds))
        codes = _codes(each, own, kind, late)
        days = np.cumsum(_gaps(each[..., 9], kind, lengths), axis=1)
        real = np.arange(n) < lengths[:, None]  # (b, n)
        numbers = _numbers(each, own, kind, stress, codes, real)
        labels = (own[:, 2] < risk).astype(np.int64)
        assert codes.shape == (b, n, len(SIZES))
        return MadeUpClients(codes, numbers, days, lengths, risk, labels)

    def _draws(self, number: int) -> np.ndarray:
        bits = np.random.Philox(key=np.array([self.seed, number], dtype=np.uint64))
        return np.random.Generator(bits).random(OWN_DRAWS + LONGEST * DRAWS, dtype=np.float32)


class Spells(NamedTuple):
    """Up to SPELLS spells of each client; those that do not happen have kind −1."""

    kind: np.ndarray  # (b, s)
    start: np.ndarray  # (b, s)
    stop: np.ndarray  # (b, s)


def best_gini(clients: int = 200_000, seed: int = 0, late: bool = True) -> float:
    """The Gini of the true probabilities, over fresh clients: no model can be better."""
    risk, labels = [], []
    for start in range(0, clients, 2000):
        found = labelled(np.arange(start, min(start + 2000, clients)) + (1 << 40), seed, late)
        risk.append(found[0])
        labels.append(found[1])
    return gini(np.concatenate(risk), np.concatenate(labels))


def labelled(index: np.ndarray, seed: int, late: bool) -> tuple[np.ndarray, np.ndarray]:
    """Probability and label of clients, without their transactions."""
    own = _own_draws(index, seed)
    spells = _spells(own[:, 8:40], _lengths(own[:, 0], LONGEST))
    stress = np.sqrt(12) * (own[:, 1] - 0.5)
    odds = BASE + PER_RISKY * np.minimum(_risky(spells), MOST_RISKY) + PER_STRESS * stress
    risk = 1 / (1 + np.exp(-(odds + LATE * late)))
    return risk, (own[:, 2] < risk).astype(np.int64)


def lengths_of(index: np.ndarray, seed: int) -> np.ndarray:
    """Transactions of clients (b,), without making them."""
    return _lengths(_own_draws(index, seed)[:, 0], LONGEST)


def _own_draws(index: np.ndarray, seed: int) -> np.ndarray:
    """(b, 64): what each client draws first."""
    bits = [np.random.Philox(key=np.array([seed, int(i)], dtype=np.uint64)) for i in index]
    return np.stack(
        [np.random.Generator(each).random(OWN_DRAWS, dtype=np.float32) for each in bits]
    )


def _lengths(u: np.ndarray, longest: int) -> np.ndarray:
    """Log-normal with mean MEAN, cut to its range: (b,)."""
    z = _normal(u)
    found = MEAN * np.exp(SPREAD * z - SPREAD**2 / 2)
    return np.clip(found, SHORTEST, longest).astype(np.int64)


def _spells(u: np.ndarray, lengths: np.ndarray) -> Spells:
    """From (b, 32) draws: one spell in each of SPELLS equal parts of the year, or none."""
    u = u[:, : 4 * SPELLS].reshape(len(u), SPELLS, 4)
    drawn = np.searchsorted(np.cumsum(KIND_SHARES), u[..., 0], side="right")
    kind = np.where(drawn < KINDS, drawn, -1)
    size = RUN[0] + (u[..., 2] * (RUN[1] - RUN[0] + 1)).astype(int)
    part = lengths[:, None] / SPELLS
    room = np.maximum(part - size, 0)
    start = (np.arange(SPELLS) * part + u[..., 3] * room).astype(int)
    return Spells(kind, start, np.minimum(start + size, lengths[:, None]))


def _risky(spells: Spells) -> np.ndarray:
    """(b,) gambling spells that cash advances follow within NEAR transactions."""
    gap = spells.start[:, None, :] - spells.stop[:, :, None]  # (b, from, to)
    pair = (spells.kind == GAMBLING)[:, :, None] & (spells.kind == CASH)[:, None, :]
    return (pair & (gap >= 0) & (gap <= NEAR)).any(-1).sum(-1)


def _kind_of(spells: Spells, n: int) -> np.ndarray:
    """(b, n): 1 + the kind of the spell that a transaction belongs to, 0 for none."""
    at = np.arange(n)
    inside = (at >= spells.start[..., None]) & (at < spells.stop[..., None])  # (b, s, n)
    inside &= (spells.kind >= 0)[..., None]
    return (inside * (1 + spells.kind)[..., None]).max(1)


def _codes(each: np.ndarray, own: np.ndarray, kind: np.ndarray, late: np.ndarray) -> np.ndarray:
    """Ten categories (b, n, 10): everyday habits of the client, and those of its spells."""
    everyday = SIZES[0] - KINDS * CODES
    habit = 0.6 + 1.2 * own[:, 3, None]  # how narrow the client's taste is
    taste = (own[:, 4, None] * everyday).astype(int)
    mcc = (taste + everyday * each[..., 0] ** (1 + habit)).astype(int) % everyday
    # A tenth of everyday transactions is of a kind of spell: single ones mean nothing.
    stray = each[..., 10] < 0.1 + 0.03 * late[:, None]
    any_kind = everyday + (each[..., 0] * KINDS * CODES).astype(int)
    mcc = np.where(stray, any_kind, mcc)
    typed = everyday + (kind - 1) * CODES + (each[..., 0] * CODES).astype(int)
    mcc = np.where((kind > 0) & (each[..., 11] < WITHIN), typed, mcc)
    home = (own[:, 5, None] * SIZES[2]).astype(int)
    others = [(each[..., 1 + k] ** 2 * size).astype(int) for k, size in enumerate(SIZES[1:])]
    others[1] = np.where(each[..., 2] < 0.8, home, others[1])
    others[5] = (mcc * 7 + (each[..., 6] * 5).astype(int)) % SIZES[6]  # merchants by category
    return np.stack([mcc, *others], axis=-1).astype(np.uint8)


def _gaps(u: np.ndarray, kind: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Days between transactions (b, n); a spell is denser than everyday life."""
    usual = YEAR / lengths[:, None]
    return -np.log1p(-np.minimum(u, 0.999999)) * usual * np.where(kind > 0, 0.4, 1.0)


def _numbers(
    each: np.ndarray,
    own: np.ndarray,
    kind: np.ndarray,
    stress: np.ndarray,
    codes: np.ndarray,
    real: np.ndarray,
) -> np.ndarray:
    """Ten numbers (b, n, 10), in units that their names have in a bank."""
    z = _normal(each[..., 12])
    level = 3.2 + 0.6 * own[:, 6, None] - 0.12 * stress[:, None]
    dear = 0.25 * (codes[..., 0] % 9 - 4.0)  # by merchant category; codes are unsigned
    amount = np.exp(level + dear + np.where(kind > 0, 0.4, 0.0) + 0.8 * z)
    sign = np.where(codes[..., 8] == 0, -1.0, 1.0)
    flow = sign * amount
    balance = 1000 * (1 + 4 * own[:, 7, None]) + np.cumsum(flow - _mean(flow, real), 1)
    fee = np.where(codes[..., 1] == 2, 0.01 * amount, 0.0)
    distance = np.exp(4 * each[..., 13])
    cashback = np.where(codes[..., 5] == 1, 0.005 * amount, 0.0)
    share = np.clip(balance / 10_000 + 0.05 * _normal(each[..., 14]), -2, 2)
    instalments = np.floor(12 * each[..., 15] ** 6)
    rate = 1 + 0.1 * codes[..., 4] + 0.01 * z
    wait = each[..., 13] * 30
    rank = amount / (_mean(amount, real) + 1)
    columns = (amount, balance, fee, distance, cashback, share, instalments, rate, wait, rank)
    return np.stack(columns, axis=-1).astype(np.float32)


def _mean(values: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Over the real transactions of each client: (b, 1)."""
    return values.mean(1, keepdims=True, where=real)


def _normal(u: np.ndarray) -> np.ndarray:
    """Uniform numbers as nearly normal ones, by the logistic quantile with matched variance."""
    u = np.clip(u.astype(np.float64), 1e-6, 1 - 1e-6)
    return np.log(u / (1 - u)) * (np.sqrt(3) / np.pi)
