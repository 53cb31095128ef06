"""Checkpoints: whole or not there, the newest that can be read, and never a pickle."""

import os
import pickle
from pathlib import Path

import pytest
import torch
from tiny_runs import trunk

from weft.errors import WeftError
from weft.models import Classifier, load
from weft.training.checkpoints import checkpoint
from weft.training.checkpoints.checkpoint import Checkpoint


def state(step: int) -> Checkpoint:
    tensors = {
        "model/a": torch.full((3,), float(step)),
        "model/b.c": torch.arange(step),
        "random/cpu": torch.get_rng_state(),
    }
    return Checkpoint(step, tensors, {"place": {"step": step, "best": 0.1}})


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps({"model/a": 1}))


def older_format(path: Path) -> None:
    if path.suffix == ".json":
        path.write_text(path.read_text().replace('"format": 1', '"format": 0'))
    else:
        flip_a_bit(path)


DAMAGE = [flip_a_bit, shorten, empty, remove, pickled, older_format]


def test_what_was_saved_comes_back(tmp_path):
    saved = state(12)
    checkpoint.save(tmp_path, saved)
    found = checkpoint.load(tmp_path)
    assert (found.step, found.values, found.unreadable) == (12, saved.values, [])
    assert found.tensors.keys() == saved.tensors.keys()
    assert all(torch.equal(found.tensors[k], saved.tensors[k]) for k in saved.tensors)
    assert found.under("model").keys() == {"a", "b.c"}


def test_the_newest_two_are_kept(tmp_path):
    for step in (1, 2, 30, 4):
        checkpoint.save(tmp_path, state(step))
    assert checkpoint.steps(tmp_path) == [4, 30]
    assert checkpoint.load(tmp_path).step == 30


def test_nothing_is_no_checkpoint(tmp_path):
    assert checkpoint.load(tmp_path / "none") is None


@pytest.mark.parametrize("file", ["state.json", "state.safetensors"])
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_damaged_one_gives_way_to_the_one_before(damage, file, tmp_path):
    for step in (5, 6):
        checkpoint.save(tmp_path, state(step))
    damage(tmp_path / "00000006" / file)
    found = checkpoint.load(tmp_path)
    assert found.step == 5
    assert len(found.unreadable) == 1
    assert "00000006" in found.unreadable[0]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_only_damaged_ones_are_an_error(damage, tmp_path):
    for step in (5, 6):
        checkpoint.save(tmp_path, state(step))
        damage(tmp_path / f"{step:08d}" / "state.safetensors")
    with pytest.raises(WeftError, match=r"no checkpoint of this run can be read.*remove"):
        checkpoint.load(tmp_path)


def test_a_half_written_one_is_not_seen(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, state(5))

    def fail(*args):
        raise OSError("no space left on device")

    monkeypatch.setattr(checkpoint, "sync", fail)
    with pytest.raises(OSError, match="no space"):
        checkpoint.save(tmp_path, state(6))
    assert checkpoint.load(tmp_path).step == 5
    monkeypatch.undo()
    checkpoint.save(tmp_path, state(6))
    assert checkpoint.load(tmp_path).step == 6
    assert {path.name for path in tmp_path.iterdir()} == {"00000005", "00000006"}


def test_files_reach_the_disk_before_they_get_their_name(tmp_path, monkeypatch):
    events = []
    fsync, rename = os.fsync, Path.rename
    monkeypatch.setattr(os, "fsync", lambda handle: (events.append("fsync"), fsync(handle)))
    monkeypatch.setattr(Path, "rename", lambda a, b: (events.append("rename"), rename(a, b)))
    checkpoint.save(tmp_path, state(5))
    at = events.index("rename")
    assert events[:at].count("fsync") == 3  # two files and their folder
    assert events[at + 1 :].count("fsync") == 1  # the name


def model(fill: float):
    made = Classifier(trunk=trunk(), classes=2).build()
    torch.nn.init.constant_(made.head[0].bias, fill)
    return made


def bias(folder) -> float:
    return load(folder).head[0].bias[0].item()


@pytest.mark.parametrize("stage", ["before", "between", "after"])
def test_the_best_model_survives_a_kill_inside_its_exchange(stage, tmp_path, monkeypatch):
    place = tmp_path / "best"
    checkpoint.save_best(model(1.0), place)
    real, moves = Path.rename, []

    def rename(a, b):
        if a.parent == tmp_path:
            moves.append(a.name)
            if (stage, len(moves)) in (("before", 1), ("between", 2)):
                raise KeyboardInterrupt
        real(a, b)

    monkeypatch.setattr(Path, "rename", rename)
    if stage == "after":
        monkeypatch.setattr(checkpoint.shutil, "rmtree", lambda *args, **kwargs: None)
    try:
        checkpoint.save_best(model(2.0), place)
    except KeyboardInterrupt:
        assert stage != "after"
    monkeypatch.undo()
    checkpoint.recover_best(place)
    assert bias(place) == (2.0 if stage == "after" else 1.0)
    assert {path.name for path in tmp_path.iterdir()} == {"best"}
