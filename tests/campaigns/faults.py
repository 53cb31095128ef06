"""Faults of the disk under a training: full, failing to sync or to rename, torn by a power failure.

    python tests/campaigns/faults.py FOLDER --count 100 --seed 1

A training of two stages writes through the real code of rows, checkpoints and models; at one of its
file operations the disk fails. The training ends with an error in words (or dies, where a write is
torn), nothing is lost, and the same run, begun again, ends bitwise equal to an undisturbed one.

    full      from this operation on nothing can be written (ENOSPC); half of the data is
    sync      this fsync fails (EIO)
    rename    this rename or replace fails (EIO)
    torn      half of this write reaches the disk, then the process is killed

Operations are those of Python (`open(...).write`, `os.fsync`, `os.rename`, `os.mkdir`) and of
safetensors. Each training is a fork, so one costs milliseconds.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

from kill_runs import check, ended, finish, life, run  # after the path is set

from weft.errors import WeftError  # after the path is set
from weft.models import saving  # after the path is set
from weft.training import train  # after the path is set

# The operations at which each kind of fault strikes.
KINDS = {
    "full": {"write", "mkdir", "tensors"},
    "sync": {"fsync"},
    "rename": {"rename"},
    "torn": {"write", "tensors"},
}
SAID, RAW = 21, 22  # exit statuses: an error in words; any other exception


class Disk:
    """Counts the operations of a kind under a folder, and fails at one of them."""

    def __init__(self, folder: Path, kind: str, at: int | None) -> None:
        self.folder, self.kind, self.at, self.count = str(folder), kind, at, 0

    def strikes(self, operation: str, path: Any) -> bool:
        """Whether this operation fails."""
        if operation not in KINDS[self.kind] or self.folder not in str(path):
            return False
        self.count += 1
        if self.at is None:
            return False
        return self.count >= self.at if self.kind == "full" else self.count == self.at

    def fail(self) -> None:
        """What the system does then."""
        if self.kind == "torn":
            os.kill(os.getpid(), signal.SIGKILL)
        number = errno.ENOSPC if self.kind == "full" else errno.EIO
        raise OSError(number, os.strerror(number))

    def install(self) -> None:
        """Put it under this process."""
        plain, fsync, save_file = io.open, os.fsync, saving.save_file

        def opened(path: Any, mode: str = "r", *args: Any, **given: Any) -> Any:
            file = plain(path, mode, *args, **given)
            return File(file, path, self) if set(mode) & set("wax+") else file

        def synced(handle: int) -> None:
            if self.strikes("fsync", os.readlink(f"/proc/self/fd/{handle}")):
                self.fail()
            fsync(handle)

        def tensors(values: Any, path: Any) -> None:
            save_file(values, path)
            if self.strikes("tensors", path):
                os.truncate(path, os.path.getsize(path) // 2)
                if self.kind == "torn":
                    self.fail()
                raise saving.SafetensorError("I/O error: No space left on device (os error 28)")

        io.open, os.fsync, saving.save_file = opened, synced, tensors
        os.rename = self.watched(os.rename, "rename")
        os.replace = self.watched(os.replace, "rename")
        os.mkdir = self.watched(os.mkdir, "mkdir")

    def watched(self, plain: Callable[..., Any], operation: str) -> Callable[..., Any]:
        """The function of `os`, which may fail before it does anything."""

        def call(path: Any, *args: Any, **given: Any) -> Any:
            if self.strikes(operation, path):
                self.fail()
            return plain(path, *args, **given)

        return call


class File:
    """An open file of which half a write may be all that reaches the disk."""

    def __init__(self, file: Any, path: Any, disk: Disk) -> None:
        self.file, self.path, self.disk = file, path, disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> File:
        return self

    def __exit__(self, *error: Any) -> None:
        self.file.close()

    def write(self, data: Any) -> int:
        """Write it, or half of it."""
        if self.disk.strikes("write", self.path):
            self.file.write(data[: len(data) // 2])
            self.file.flush()
            self.disk.fail()
        return self.file.write(data)


def faulty(folder: Path, kind: str, at: int | None) -> tuple[int, str, int]:
    """(exit status, what it said, operations counted) of a training on such a disk."""
    ours, theirs = os.pipe()

    def body() -> None:
        disk = Disk(folder, kind, at)
        disk.install()
        status, said = 0, ""
        try:
            train(run(), folder)
        except (OSError, WeftError) as error:
            words = isinstance(error, WeftError) or error.errno is not None
            status, said = SAID if words else RAW, repr(error)
        except BaseException as error:
            status, said = RAW, repr(error)
        os.write(theirs, f"{disk.count} {said}".encode()[:4000])
        os._exit(status)

    status = ended(life(folder, body))
    os.close(theirs)
    with open(ours) as pipe:
        count, _, said = pipe.read().partition(" ")
    return status, said, int(count or 0)


def campaign(folder: Path, kind: str, count: int, seed: int) -> tuple[int, int]:
    """(faults, operations of an undisturbed run); raises where something is lost or raw."""
    place = folder / kind
    status, said, operations = faulty(place, kind, None)
    assert status == 0, said
    check(place)
    chosen = random.Random(seed).sample(range(1, operations + 1), min(count, operations))
    for at in sorted(chosen):
        shutil.rmtree(place, ignore_errors=True)
        status, said, _ = faulty(place, kind, at)
        expected = (-signal.SIGKILL,) if kind == "torn" else (0, SAID)
        assert status in expected, f"{kind} at {at}: status {status}, {said}"
        finish(place)
    return len(chosen), operations


def main() -> None:
    """Run all kinds and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=25, help="faults of each kind")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    assert ended(life(given.folder / "undisturbed")) == 0
    for kind in KINDS:
        faults, operations = campaign(given.folder, kind, given.count, given.seed)
        print(f"{kind}: {faults} faults at {operations} operations, all ends equal", flush=True)


if __name__ == "__main__":
    main()
