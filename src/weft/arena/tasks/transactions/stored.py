"""Made-up clients kept on disk: made once by several processes, then mapped into memory.

What a model reads of a client is the same, bit by bit, as when it is made whenever it is read; that
takes half a millisecond each time, which a training that reads a client often does not have.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from weft.arena.data.cache import Arrays, cached
from weft.arena.tasks.base import SPLITS, Split
from weft.arena.tasks.transactions.clients import (
    LONGEST,
    NAMES,
    NUMBERS,
    SIZES,
    VERSION,
    Generator,
    MadeUpClients,
    lengths_of,
)
from weft.arena.tasks.transactions.scales import scaled
from weft.errors import WeftError
from weft.events.columns import EventColumns
from weft.events.encoders import FIRST, Codes, Encoders
from weft.events.store import Store, store_arrays
from weft.events.threads import cores

SPACING = 1 << 32  # between the numbers of two splits' clients
CHUNK = 500  # clients that a process makes at a time
ALONE = 5000  # up to so many clients, starting processes takes longer than making them


def made(split: Split, index: np.ndarray, seed: int) -> MadeUpClients:
    """Clients by their numbers in a split; those of the test are out of time."""
    late = np.full(len(index), float(split == "test"))
    return Generator(seed, LONGEST).clients(index + SPLITS.index(split) * SPACING, late)


def encoders() -> Encoders:
    """The columns as a model reads them: a code is its value, behind the reserved ones."""
    columns = EventColumns(id="client", categories=NAMES, numbers=NUMBERS)
    codes = tuple(Codes(tuple(map(str, range(size)))) for size in SIZES)
    return Encoders(columns, codes, scaled())


@cache
def stored(split: Split, count: int, seed: int) -> tuple[Store, np.ndarray]:
    """The first clients of a split and their labels, from the cache or made now."""

    def build(folder: Path) -> Arrays:
        return _build(folder, split, count, seed)

    wanted = {"version": VERSION, "split": split, "clients": count, "seed": seed}
    found = cached("transactions", wanted, build)
    store = Store(
        encoders=encoders(),
        starts=found["starts"],
        codes=found["codes"],
        numbers=found["numbers"],
        times=found["times"],
        ids=tuple(map(str, range(count))),
        labels=(),
        until=found["until"],
        remarks=(),
    )
    return store, found["labels"]


def _build(folder: Path, split: Split, count: int, seed: int) -> Arrays:
    index = np.arange(count)
    starts = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(lengths_of(index + SPLITS.index(split) * SPACING, seed), out=starts[1:])
    store_arrays(folder, int(starts[-1]), encoders())
    if count <= ALONE:
        ends = _fill(folder, split, seed, starts, 0, count)
    else:
        ends = _fill_together(folder, split, seed, starts)
    return {"starts": starts, **ends}


def _fill(
    folder: Path, split: Split, seed: int, starts: np.ndarray, first: int, stop: int
) -> Arrays:
    """Make clients `first` to `stop` − 1 and write them to their place; their ends and labels."""
    arrays = {
        name: np.load(folder / f"{name}.npy", mmap_mode="r+")
        for name in ("codes", "numbers", "times")
    }
    ends = []
    for start in range(first, stop, CHUNK):
        index = np.arange(start, min(start + CHUNK, stop))
        found = made(split, index, seed)
        real = np.arange(found.codes.shape[1]) < found.lengths[:, None]
        span = slice(int(starts[index[0]]), int(starts[index[-1] + 1]))
        arrays["codes"][span] = FIRST + found.codes[real].astype(np.uint16)
        for k, scale in enumerate(scaled()):
            arrays["numbers"][span, k] = scale.encode(found.numbers[..., k][real])
        arrays["times"][span] = found.days[real]
        ends.append((found.days[np.arange(len(index)), found.lengths - 1], found.labels))
    until, labels = (np.concatenate(each) for each in zip(*ends, strict=True))
    return {"until": until, "labels": labels}


def _fill_together(folder: Path, split: Split, seed: int, starts: np.ndarray) -> Arrays:
    """`_fill` by processes: plain ones, so that a user's script needs no guard of its main part."""
    np.save(folder / "starts.npy", starts)
    count, workers = len(starts) - 1, cores()
    edges = [count * k // workers for k in range(workers + 1)]
    command = [sys.executable, "-m", __name__, str(folder), split, str(seed)]
    shares = [[*command, str(first), str(stop)] for first, stop in pairwise(edges)]
    running = [subprocess.Popen(each, stderr=subprocess.PIPE, text=True) for each in shares]
    failed = [each.communicate()[1] for each in running]
    if any(each.returncode for each in running):
        raise WeftError(f"clients could not be made: {max(failed, key=len).strip()[-500:]}")
    parts = [np.load(folder / f"part-{first}.npz") for first in edges[:-1]]
    ends = {name: np.concatenate([part[name] for part in parts]) for name in ("until", "labels")}
    for first in edges[:-1]:
        (folder / f"part-{first}.npz").unlink()
    return ends


def _main(folder: str, split: Split, seed: str, first: str, stop: str) -> None:
    """One process of `_fill_together`."""
    place = Path(folder)
    ends = _fill(place, split, int(seed), np.load(place / "starts.npy"), int(first), int(stop))
    np.savez(place / f"part-{first}.npz", until=ends["until"], labels=ends["labels"])


if __name__ == "__main__":
    _main(*sys.argv[1:])  # type: ignore[arg-type]
