"""Splits of a table: made by a rule, or given and checked for leaks.

Rows of one group (of one book, say) stay together, and so do groups that share a text.

Made: each class by itself is ordered by a keyed hash of its texts and cut into test, valid and
train. So the splits follow from the texts and the seed alone, not from the order of rows; every
class has its share in each split, to one row; rows with the same text stay together, whatever their
labels; and the last text of a class stays in train, since what is never trained is only noise in a
test.

Given: a text that is also in test leaves train and valid, and one that is also in valid leaves
train: else the score measures memory.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

import numpy as np

from weft.arena.tasks.base import SPLITS, Split
from weft.errors import WeftError

TRAIN, VALID, TEST = (SPLITS.index(split) for split in ("train", "valid", "test"))
LEFT_OUT = -1  # where a split stands, of a row that would leak


def text_keys(texts: Sequence[str], seconds: Sequence[str], seed: int) -> list[bytes]:
    """A key for each row, the same for the same text; of a pair, in either order."""
    salt = seed.to_bytes(16, "little", signed=True)
    own = [_digest(text, salt) for text in texts]
    if not seconds:
        return own
    other = [_digest(text, salt) for text in seconds]
    return [min(a, b) + max(a, b) for a, b in zip(own, other, strict=True)]


def joined(keys: Sequence[bytes], groups: Sequence[str]) -> list[bytes]:
    """One key for all rows that share a group or, through others, a text: they stay together."""
    root: dict[Hashable, Hashable] = {}

    def find(node: Hashable) -> Hashable:
        while (above := root.setdefault(node, node)) != node:
            root[node] = root[above]
            node = root[node]
        return node

    for key, group in zip(keys, groups, strict=True):
        root[find(key)] = find(group)
    smallest: dict[Hashable, bytes] = {}
    for key in keys:
        own = find(key)
        smallest[own] = min(smallest.get(own, key), key)
    return [smallest[find(key)] for key in keys]


def _digest(text: str, salt: bytes) -> bytes:
    return hashlib.blake2b(text.strip().encode(), digest_size=12, salt=salt).digest()


def made_splits(
    keys: Sequence[bytes], labels: np.ndarray, shares: dict[Split, float]
) -> np.ndarray:
    """(rows,) the place in SPLITS of each row; `shares` says what valid and test get."""
    groups: dict[bytes, list[int]] = defaultdict(list)
    for row, key in enumerate(keys):
        groups[key].append(row)
    classes: dict[int, list[bytes]] = defaultdict(list)
    for key in sorted(groups):
        classes[_common(labels[groups[key]])].append(key)
    found = np.full(len(keys), TRAIN, dtype=np.int8)
    owed = dict.fromkeys(shares, 0.0)
    for label in sorted(classes):
        members = classes[label]
        rows = sum(len(groups[key]) for key in members)
        for split, share in shares.items():
            # Remainders go from class to class, so that many small classes fill a split too.
            due = owed[split] + share * rows
            target = math.floor(due + 0.5)
            owed[split] = due - target
            taken, members = _take(members, groups, target)
            for key in taken:
                found[groups[key]] = SPLITS.index(split)
    return found


def _take(
    members: list[bytes], groups: dict[bytes, list[int]], target: int
) -> tuple[list[bytes], list[bytes]]:
    """The first groups that bring `target` rows, and the rest; a group too large is passed over."""
    taken, rest, rows = [], [], 0
    for place, key in enumerate(members):
        size = len(groups[key])
        last = not rest and place == len(members) - 1
        if rows + size / 2 <= target - 0.5 and not last:
            taken.append(key)
            rows += size
        else:
            rest.append(key)
    return taken, rest


def _common(labels: np.ndarray) -> int:
    """The most frequent label, the smallest of several."""
    count = Counter(labels.tolist())
    return min(count, key=lambda label: (-count[label], label))


def given_splits(
    given: Sequence[str], keys: Sequence[bytes], places: Sequence[str], also: str = ""
) -> np.ndarray:
    """(rows,) places in SPLITS, from what a column says; nothing may be in two of them.

    `places` say where each row stands, for people; `also`, what else has the same key.
    """
    known = {"train": TRAIN, "valid": VALID, "validation": VALID, "test": TEST}
    first: dict[bytes, int] = {}
    found = np.zeros(len(keys), dtype=np.int8)
    for row, (split, key) in enumerate(zip(given, keys, strict=True)):
        if split.strip().lower() not in known:
            raise WeftError(f"{places[row]}: a split is train, valid or test; got {split!r}")
        found[row] = known[split.strip().lower()]
        before = first.setdefault(key, row)
        if found[before] != found[row]:
            raise WeftError(
                f"{places[row]} is the same as {places[before]}{also}, and they are in "
                f"{SPLITS[found[row]]} and {SPLITS[found[before]]}: a score on it would measure "
                "memory; leave one of them out"
            )
    return found


def leaks(keys: Sequence[bytes], splits: np.ndarray) -> np.ndarray:
    """(rows,) which rows of train and valid repeat a text of a later split."""
    at = defaultdict(int)
    for key, split in zip(keys, splits.tolist(), strict=True):
        at[key] = max(at[key], split)
    return np.array([split < at[key] for key, split in zip(keys, splits.tolist(), strict=True)])


def repeats(keys: Sequence[bytes], labels: np.ndarray) -> tuple[int, int]:
    """How many rows repeat the text of another, and how many texts have several labels."""
    seen: dict[bytes, set[int]] = defaultdict(set)
    for key, label in zip(keys, labels.tolist(), strict=True):
        seen[key].add(label)
    return len(keys) - len(seen), sum(len(found) > 1 for found in seen.values())
