"""Cached arrays: made once, by one process, whole or not at all."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from weft.arena.data import cache
from weft.arena.data.cache import cached
from weft.errors import WeftError


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Builder:
    def __init__(self, start=0):
        self.calls, self.start = 0, start

    def __call__(self, scratch):
        self.calls += 1
        np.save(scratch / "large.npy", np.arange(self.start, self.start + 5))
        return {"small": np.array([self.start], dtype=np.uint8), "none": np.zeros(0)}


def test_made_once_and_the_same_after():
    build = Builder()
    first = cached("x", {"a": 1}, build)
    again = cached("x", {"a": 1}, build)
    assert build.calls == 1
    for found in (first, again):
        assert sorted(found) == ["large", "none", "small"]
        assert found["large"].tolist() == [0, 1, 2, 3, 4]
        assert found["small"].dtype == np.uint8
        assert type(found["large"]) is np.ndarray


def test_nothing_can_be_changed():
    found = cached("x", {"a": 1}, Builder())
    with pytest.raises(ValueError, match="read-only"):
        found["large"][0] = 7


@pytest.mark.parametrize(
    ("name", "settings"), [("x", {"a": 2}), ("y", {"a": 1}), ("x", {"a": 1, "version": 2})]
)
def test_other_settings_are_other_arrays(name, settings):
    cached("x", {"a": 1}, Builder())
    other = Builder(start=10)
    assert cached(name, settings, other)["large"].tolist() == [10, 11, 12, 13, 14]
    assert other.calls == 1


def test_the_order_of_settings_does_not_matter():
    build = Builder()
    cached("x", {"a": 1, "b": 2}, build)
    cached("x", {"b": 2, "a": 1}, build)
    assert build.calls == 1


def test_a_failed_build_leaves_nothing(place):
    def fails(scratch):
        np.save(scratch / "half.npy", np.arange(3))
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        cached("x", {}, fails)
    assert [path.suffix for path in place.iterdir()] == [".lock"]
    assert cached("x", {}, Builder())["large"].tolist() == [0, 1, 2, 3, 4]


def test_what_a_killed_process_left_is_removed(place):
    cached("x", {}, Builder())
    (folder,) = [path for path in place.iterdir() if path.is_dir()]
    left = folder.with_name(f".{folder.name}.12345")
    folder.rename(left)
    build = Builder()
    cached("x", {}, build)
    assert build.calls == 1
    assert not left.exists()


@pytest.mark.parametrize("damage", ["cut", "gone", "other"])
def test_a_damaged_folder_is_made_again(place, damage):
    cached("x", {}, Builder())
    (folder,) = [path for path in place.iterdir() if path.is_dir()]
    if damage == "cut":
        data = (folder / "large.npy").read_bytes()
        (folder / "large.npy").write_bytes(data[:-9])
    elif damage == "gone":
        (folder / "settings.json").unlink()
    else:
        (folder / "settings.json").write_text("{}}")
    build = Builder()
    assert cached("x", {}, build)["large"].tolist() == [0, 1, 2, 3, 4]
    assert build.calls == 1


def test_a_pickle_is_never_loaded(place):
    cached("x", {}, Builder())
    (folder,) = [path for path in place.iterdir() if path.is_dir()]
    np.save(folder / "small.npy", np.array([{}], dtype=object), allow_pickle=True)
    build = Builder()
    assert cached("x", {}, build)["small"].tolist() == [0]
    assert build.calls == 1


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "file"))
    with pytest.raises(WeftError, match=r"cannot be written .* set WEFT_CACHE"):
        cached("x", {}, Builder())


def test_where_it_is(monkeypatch, tmp_path):
    assert cache.root() == tmp_path / "cache"
    monkeypatch.delenv("WEFT_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.root() == tmp_path / ".cache" / "weft"


PROGRAM = """
import json, sys, time
import numpy as np
from weft.arena.data.cache import cached
def build(scratch):
    with open(sys.argv[1], "a") as log: log.write("built\\n")
    time.sleep(0.5)
    return {"x": np.arange(4)}
print(json.dumps(cached("x", {"a": 1}, build)["x"].tolist()))
"""


def test_two_processes_at_once_build_once(tmp_path):
    log = tmp_path / "log"
    command = [sys.executable, "-c", PROGRAM, str(log)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ)) for _ in range(2)
    ]
    outputs = [json.loads(process.communicate()[0]) for process in running]
    assert outputs == [[0, 1, 2, 3]] * 2
    assert log.read_text() == "built\n"
