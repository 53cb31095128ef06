"""Checkpoints that survive a kill at any moment.

    checkpoints/00000120/state.safetensors    weights, optimiser, random states: tensors by name
    checkpoints/00000120/state.json           the rest, and a checksum of it all

A checkpoint is written under a temporary name, forced to the disk and renamed; only then are older
ones removed. The newest two are kept: if the newest cannot be read, the one before it is used, and
that is said. No pickle is ever read.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from weft.errors import WeftError
from weft.files import sync_entry
from weft.models import save as save_model
from weft.models.saving import write_tensors

FORMAT = 1
KEPT = 2
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError)
_TENSORS, _VALUES = "state.safetensors", "state.json"


@dataclass
class Checkpoint:
    """All that a run needs to go on."""

    step: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]
    unreadable: list[str] = field(default_factory=list)  # newer ones that could not be read
    parts: Path | None = (
        None  # where the tensors lie that several processes wrote; read when needed
    )

    def under(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with prefix/, without it."""
        start = prefix + "/"
        return {k.removeprefix(start): v for k, v in self.tensors.items() if k.startswith(start)}


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint into `folder` and remove all but the newest ones."""
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"{checkpoint.step:08d}"
    scratch = folder / f".{place.name}.new"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    tensors = {name: t.detach().cpu().contiguous() for name, t in checkpoint.tensors.items()}
    write_tensors(tensors, scratch / _TENSORS)
    values = {"format": FORMAT, "step": checkpoint.step, "values": checkpoint.values}
    values["checksum"] = checksum(scratch / _TENSORS, values)
    (scratch / _VALUES).write_text(json.dumps(values) + "\n")
    put(scratch, place)
    return place


def put(scratch: Path, place: Path) -> None:
    """Give a checkpoint that is written its name, and remove all but the newest ones."""
    sync(scratch)
    # A checkpoint of this very step is there only if it could not be read, or we were beyond it.
    shutil.rmtree(place, ignore_errors=True)
    scratch.rename(place)
    sync_entry(place.parent)
    for old in steps(place.parent)[:-KEPT]:
        shutil.rmtree(place.parent / f"{old:08d}")


def load(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that can be read; None if there is none at all."""
    reasons: list[str] = []
    for step in reversed(steps(folder)):
        try:
            found = _read(folder / f"{step:08d}")
        except _UNREADABLE as cause:
            reasons.append(f"{folder / f'{step:08d}'}: {cause}")
        else:
            found.unreadable = reasons
            return found
    if reasons:
        raise WeftError(
            "no checkpoint of this run can be read; to train it again from the start, remove "
            f"{folder}. {'; '.join(reasons)}"
        )
    return None


def steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint, whether readable or not, in order."""
    if not folder.is_dir():
        return []
    found = (int(path.name) for path in folder.iterdir() if re.fullmatch("[0-9]{8,}", path.name))
    return sorted(step for step in found if (folder / f"{step:08d}").is_dir())


def _read(path: Path) -> Checkpoint:
    from weft.training.checkpoints import parts

    head = json.loads((path / _VALUES).read_text())
    if head["format"] == parts.FORMAT:
        parts.check(path, head["sizes"])
        return Checkpoint(head["step"], {}, head["values"], parts=path)
    if head["format"] != FORMAT:
        raise WeftError(f"format {head['format']} is not {FORMAT}, which this version reads")
    if head.pop("checksum") != checksum(path / _TENSORS, head):
        raise WeftError("it is damaged: its checksum does not fit")
    return Checkpoint(head["step"], load_file(path / _TENSORS), head["values"])


def checksum(path: Path, values: dict[str, Any]) -> int:
    """CRC-32 of plain values and a file."""
    value = zlib.crc32(json.dumps(values, sort_keys=True).encode())
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return value


def save_best(model: nn.Module, folder: Path) -> None:
    """Save a model as `folder`; a kill at any moment leaves the old one, the new one, or both."""
    new, old = folder.with_name(folder.name + ".new"), folder.with_name(folder.name + ".old")
    recover_best(folder)
    save_model(model, new)
    sync(new)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    sync_entry(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover_best(folder: Path) -> None:
    """Undo what a kill inside `save_best` left half done."""
    new, old = folder.with_name(folder.name + ".new"), folder.with_name(folder.name + ".old")
    if old.exists() and not folder.exists():
        old.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(new, ignore_errors=True)
    for left in folder.parent.glob(f".{new.name}.*"):
        shutil.rmtree(left, ignore_errors=True)


def sync(folder: Path) -> None:
    """Force the files of a folder, and the folder, to the disk."""
    for path in folder.iterdir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    sync_entry(folder)
