"""The folder of a run: what was asked for, what happened, and how it ended.

settings.json    the run; another run in the same folder is refused with the difference
metrics.jsonl    rows: "kind" is train or valid
checkpoints/     while it trains
best/, last/     models (weft.models.load)
done.json        the outcome, once there is one
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weft import rows
from weft.errors import WeftError
from weft.files import locked, read_object, remove_leftovers, replacing, write_json
from weft.training.checkpoints import checkpoint
from weft.training.run import Outcome, Run, described
from weft.training.settings import FREE


def check_place(folder: Path) -> None:
    """Refuse a folder that cannot be written to, before any work is done for it."""
    way = "give another folder"
    found = folder
    while not found.exists() and not found.is_symlink() and found != found.parent:
        found = found.parent
    if not found.is_dir():
        raise WeftError(f"{str(folder)!r} cannot be a folder: {str(found)!r} is a file; {way}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError as cause:
        raise WeftError(f"{str(folder)!r} cannot be made: {cause.strerror}; {way}") from cause
    if not writable:
        raise WeftError(f"{str(folder)!r} cannot be written to; {way}, or change who may")


class RunFolder:
    """A run's folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.metrics = self.folder / "metrics.jsonl"
        self.checkpoints = self.folder / "checkpoints"
        self.best, self.last = self.folder / "best", self.folder / "last"

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Keep other processes out of the folder; a killed process lets go by itself."""
        with locked(self.folder / ".lock", wait=False) as free:
            if not free:
                raise WeftError(
                    f"another process is training in {self.folder}; wait for it, or give "
                    "this run a folder of its own"
                )
            remove_leftovers(self.folder)
            yield

    def check(self, run: Run) -> None:
        """Write down the run, or refuse one that is not the one of this folder."""
        path, wanted = self.folder / "settings.json", json.loads(json.dumps(run.describe()))
        if path.exists():
            old, new = _binding(described(_asked(path))), _binding(wanted)
            for before, now in zip(old["stages"], new["stages"], strict=False):
                if "data" not in before:  # written by weft 0.1.0, which took no fingerprints
                    del now["data"]
            differences = list(_differences(old, new))
            if differences:
                raise WeftError(
                    f"{self.folder} holds another run; train this one in a folder of its own, or "
                    f"remove that one. They differ in {'; '.join(differences[:5])}"
                )
        write_json(path, wanted)

    def outcome(self) -> Outcome | None:
        """How the run ended, if it did."""
        path = self.folder / "done.json"
        if not path.is_file():
            return None
        outcome = _outcome(path)
        self._check_whole(outcome)
        return outcome

    def _check_whole(self, outcome: Outcome) -> None:
        """Refuse a finished run without its weights; warn about one without its metrics."""
        weights = self.folder / outcome.model / "model.safetensors"
        if not weights.is_file():
            raise WeftError(
                f"{self.folder} holds a finished run, but its weights are gone: there is no "
                f"{weights}; put them back, or remove done.json, and the run goes on from its "
                "last checkpoint, or from the start"
            )
        if not self.metrics.is_file():
            warnings.warn(
                f"{self.metrics} is gone: the run is finished, and its curves are lost",
                stacklevel=3,
            )

    def finish(self, outcome: Outcome) -> None:
        """Mark the end; a finished run no longer needs its checkpoints."""
        write_json(self.folder / "done.json", dataclasses.asdict(outcome))
        self.remove_checkpoints()

    def remove_checkpoints(self) -> None:
        """Delete all checkpoints, where there are some."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)

    def write(self, row: dict[str, Any]) -> None:
        """Add a row of metrics."""
        rows.append(self.metrics, [row])

    def cut(self, step: int, pending: bool = False) -> None:
        """Remove rows from after this step, which will be written again.

        With `pending`, the validation of the step itself is still to be made.
        """
        if not self.metrics.exists():
            return
        limits = {"train": step, "valid": step - 1 if pending else step}
        kept = [row for row in self._rows() if row["step"] <= limits[row["kind"]]]
        with replacing(self.metrics) as temporary:
            temporary.write_bytes(b"")
            rows.append(temporary, kept)

    def _rows(self) -> list[rows.Row]:
        """The rows of metrics, each with its step and kind."""
        found = rows.read(self.metrics)
        for row in found:
            if row.get("kind") not in ("train", "valid") or type(row.get("step")) is not int:
                raise WeftError(
                    f"{self.metrics} holds a row that is not of a training: {row!r:.80}; move the "
                    "file away, and the run goes on with new metrics"
                )
        return found

    def load(self) -> checkpoint.Checkpoint | None:
        """The newest checkpoint, with everything else in the folder brought back to its step."""
        found = checkpoint.load(self.checkpoints)
        if found is None:
            self.cut(0)
        else:
            self.cut(found.step, found.values["place"]["pending"])
        checkpoint.recover_best(self.best)
        return found


def _asked(path: Path) -> dict[str, Any]:
    """The run that a folder's settings describe."""
    found = read_object(path, "settings", "stages")
    stages = found["stages"]
    whole = isinstance(found["settings"], dict) and isinstance(stages, list)
    if not (whole and all(isinstance(s, dict) and s.keys() >= _STAGE for s in stages)):
        raise WeftError(f"{path} does not describe a training; was it edited? {_ANEW}")
    return found


def _outcome(path: Path) -> Outcome:
    """What done.json says."""
    try:
        outcome = Outcome(**read_object(path))
    except (WeftError, TypeError) as cause:
        raise WeftError(
            f"{path} is not the outcome of a training: {cause}; remove it, and the run goes on "
            "from its last checkpoint, or from the start"
        ) from cause
    if outcome.model not in ("best", "last"):
        raise WeftError(f"{path}: model is 'best' or 'last'; got {outcome.model!r}")
    return outcome


_STAGE = {"model", "objective", "source", "settings"}
_ANEW = "train in another folder, or remove this one"


class OtherRank(RunFolder):
    """The run's folder for a process that writes nothing there: rank 0 does."""

    @contextmanager
    def claimed(self) -> Iterator[None]:
        yield

    def check(self, run: Run) -> None:
        """Rank 0 checks."""

    def outcome(self) -> Outcome | None:
        return None

    def finish(self, outcome: Outcome) -> None:
        """Rank 0 marks the end."""

    def remove_checkpoints(self) -> None:
        """Rank 0 removes them."""

    def write(self, row: dict[str, Any]) -> None:
        """Rank 0 writes."""

    def load(self) -> checkpoint.Checkpoint | None:
        return None


def _binding(described: dict[str, Any]) -> dict[str, Any]:
    """A description without what may change when a run goes on."""

    def bound(settings: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in settings.items() if name not in FREE}

    stages = [{**s, "settings": bound(s["settings"])} for s in described["stages"]]
    return {"settings": bound(described["settings"]), "stages": stages}


def _differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from _differences(old.get(key), new.get(key), f"{path}.{key}".lstrip("."))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (one, two) in enumerate(zip(old, new, strict=True)):
            yield from _differences(one, two, f"{path}[{number}]")
    elif old != new:
        yield f"{path}: {old!r} there, {new!r} here"
