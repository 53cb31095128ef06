"""Checkpoints of several processes: each writes its parts, by torch.distributed.checkpoint.

    checkpoints/00000120/.metadata, __0_0.distcp, ...    what is where, and the parts
    checkpoints/00000120/state.json                      the rest, and the size of each file

Parts are of whole tensors with names, so a run goes on with other processes than it was saved by,
or with one alone: torch reads from the files what a process needs. `state.json` is written last.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from weft.errors import WeftError
from weft.scale.team import Alone
from weft.training.checkpoints import checkpoint

FORMAT = "parts"  # in `state.json`, beside the numbers of whole checkpoints
_VALUES = "state.json"


def save(folder: Path, found: checkpoint.Checkpoint, team: Alone) -> Path:
    """Write a checkpoint with all processes of a team, and remove all but the newest ones."""
    place = folder / f"{found.step:08d}"
    scratch = folder / f".{place.name}.new"
    if team.main:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
    team.told(None)
    state_dict_saver.save(found.tensors, storage_writer=FileSystemWriter(scratch))
    if team.main:
        values = {"format": FORMAT, "step": found.step, "values": found.values}
        (scratch / _VALUES).write_text(json.dumps({**values, "sizes": _sizes(scratch)}) + "\n")
        checkpoint.put(scratch, place)
    team.told(None)
    return place


def check(path: Path, sizes: dict[str, int]) -> None:
    """Refuse a checkpoint whose files are not all there, and whole."""
    found = _sizes(path)
    wrong = [name for name, size in sizes.items() if found.get(name) != size]
    if wrong:
        raise WeftError(f"it is damaged: {', '.join(wrong)} are not as they were written")


def _sizes(path: Path) -> dict[str, int]:
    return {f.name: f.stat().st_size for f in sorted(path.iterdir()) if f.name != _VALUES}


def shapes(path: Path) -> dict[str, TensorStorageMetadata]:
    """The tensors of a checkpoint by name, without their values."""
    known = FileSystemReader(path).read_metadata().state_dict_metadata
    return {name: one for name, one in known.items() if isinstance(one, TensorStorageMetadata)}


def whole(path: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint, in one process."""
    empty = {
        name: torch.empty(one.size, dtype=one.properties.dtype)
        for name, one in shapes(path).items()
    }
    with _in_one_process():
        state_dict_loader.load(empty, storage_reader=FileSystemReader(path), no_dist=True)
    return empty


def fill(path: Path, state: dict[str, Any]) -> None:
    """Read the parts that tensors (split or not) need, in place, with all processes."""
    state_dict_loader.load(state, storage_reader=FileSystemReader(path))


def converted(folder: Path, found: checkpoint.Checkpoint) -> Path:
    """A checkpoint of one process as one of parts, in a temporary folder."""
    place = folder / ".converted"
    shutil.rmtree(place, ignore_errors=True)
    with _in_one_process():
        state_dict_saver.save(found.tensors, storage_writer=FileSystemWriter(place), no_dist=True)
    return place


@contextmanager
def _in_one_process() -> Iterator[None]:
    """torch warns that there is no process group, which is what is meant here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
