"""Files that are written completely or not at all."""

import pytest

from weft.files import locked, replacing


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
