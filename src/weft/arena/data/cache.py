"""Arrays that are slow to make, cached on disk: made once, then mapped into memory.

    <root>/<name>-<key>/        settings.json and one .npy file for each array
    <root>/<name>-<key>.lock    held while the folder is being made

The root is `$WEFT_CACHE`, else `~/.cache/weft`. The key is a hash of all settings, the version of
the code that makes the arrays included. A folder is written under a temporary name and renamed when
it is whole; a second process that wants the same arrays waits for the first one. Removing the root
is always safe: what is wanted again is made again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.files import lock

Arrays = dict[str, np.ndarray]


def root() -> Path:
    """The folder of all cached arrays."""
    chosen = os.environ.get("WEFT_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "weft"


def cached(name: str, settings: dict[str, Any], build: Callable[[Path], Arrays]) -> Arrays:
    """The arrays that `build` makes, read-only; built at most once for each name and settings.

    `settings` holds plain JSON values and everything that the arrays depend on, a version number
    of `build` among them. `build` gets a folder: what is too large for memory it writes there as
    NAME.npy, and the other arrays it returns.
    """
    wanted = json.dumps(settings, sort_keys=True)
    key = sha256(wanted.encode()).hexdigest()[:20]
    place = root() / f"{name}-{key}"
    found = _read(place, wanted)
    if found is None:
        with _alone(place):
            found = _read(place, wanted)
            if found is None:
                _write(place, wanted, build)
                found = _read(place, wanted)
    if found is None:
        raise WeftError(f"{place} changed while it was read; remove it and try again")
    return found


def _read(place: Path, wanted: str) -> Arrays | None:
    """The arrays of a whole folder; None if it is missing or damaged."""
    try:
        if (place / "settings.json").read_text() != wanted:
            return None
        # Plain views: a mapped file of a subclass would make every batch one of that subclass.
        return {
            file.stem: np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))
            for file in sorted(place.glob("*.npy"))
        }
    except (OSError, ValueError):
        return None


def _write(place: Path, wanted: str, build: Callable[[Path], Arrays]) -> None:
    scratch = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        scratch.mkdir()
        for name, array in build(scratch).items():
            with (scratch / f"{name}.npy").open("wb") as file:
                np.save(file, array, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
        (scratch / "settings.json").write_text(wanted)
        if place.exists():
            shutil.rmtree(place)
        scratch.rename(place)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Be the only process that makes `place`; what a killed one left is removed."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        file = place.with_name(f"{place.name}.lock").open("ab")
    except OSError as cause:
        raise WeftError(
            f"the cache folder {place.parent} cannot be written ({cause.strerror}); "
            "set WEFT_CACHE to a folder that can"
        ) from cause
    with file:
        lock(file)
        for left in place.parent.glob(f".{place.name}.*"):
            shutil.rmtree(left, ignore_errors=True)
        yield
