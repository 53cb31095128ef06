"""Files that are written completely or not at all."""

import errno
import os

import pytest

from weft.errors import WeftError
from weft.files import locked, read_object, replacing, replacing_folder


def test_a_file_is_replaced_when_all_of_it_is_written(tmp_path):
    path = tmp_path / "new" / "a.txt"
    for text in ("one", "two"):
        with replacing(path) as temporary:
            temporary.write_text(text)
            assert not path.exists() or path.read_text() == "one"
        assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


def write_half(path):
    with replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError):
        write_half(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_lock_is_held_by_one(tmp_path):
    pytest.importorskip("fcntl", reason="files are locked on POSIX systems")
    path = tmp_path / "new" / ".lock"
    with locked(path) as mine, locked(path, wait=False) as other:
        assert (mine, other) == (True, False)
    with locked(tmp_path / "new" / ".lock", wait=False) as free:
        assert free


def write_folder(path, text):
    with replacing_folder(path, {"a.txt"}, "a saved text") as new:
        (new / "a.txt").write_text(text)


@pytest.mark.parametrize("failing", [1, 2])
def test_a_folder_survives_a_rename_that_fails(tmp_path, monkeypatch, failing):
    """The old one moves aside, the new one comes in its place: whichever of the two fails."""
    path, rename, calls = tmp_path / "text", os.rename, []
    write_folder(path, "old")

    def renamed(*args):
        calls.append(args)
        if len(calls) == failing:
            raise OSError(errno.EIO, "Input/output error")
        rename(*args)

    monkeypatch.setattr(os, "rename", renamed)
    with pytest.raises(OSError, match="Input/output"):
        write_folder(path, "new")
    assert (path / "a.txt").read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    write_folder(path, "new")
    assert (path / "a.txt").read_text() == "new"


def test_the_files_of_a_folder_are_on_the_disk_before_its_name(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(handle))
    write_folder(tmp_path / "text", "new")
    assert len(synced) == 2  # the file, and the name of its folder


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff\xfe", r"is not UTF-8 text \(byte 0\)"),
        (b"{", "is not valid JSON"),
        (b"[" * 100_000, "is nested too deeply"),
        (b"[1]", "holds a JSON object; got"),
        (b'{"a": 1}', "lacks 'b'"),
    ],
)
def test_objects_that_are_something_else(tmp_path, data, message):
    (tmp_path / "a.json").write_bytes(data)
    with pytest.raises(WeftError, match=message):
        read_object(tmp_path / "a.json", "a", "b")
    with pytest.raises(WeftError, match=r"cannot read .*none\.json"):
        read_object(tmp_path / "none.json")
