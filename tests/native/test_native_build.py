"""Building the library: once, whole, and with the compiler's own words where it fails."""

import ctypes
import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from weft import native
from weft.errors import Unsupported, WeftError
from weft.native import build

COMPILER = """#!/bin/sh
[ "$1" = --version ] && echo "fake 1.0" && exit 0
echo "$@" >> {log}
{reply}
while [ "$1" != -o ]; do shift; done
echo built > "$2"
"""


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A compiler that writes down how it is called."""

    def make(reply=""):
        script, log = tmp_path / "cxx", tmp_path / "calls"
        script.write_text(COMPILER.format(log=log, reply=reply))
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("CXX", str(script))
        monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
        return lambda: log.read_text().splitlines() if log.exists() else []

    return make


def test_it_is_built_once_however_many_ask(compiler):
    calls = compiler("sleep 0.05")
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(lambda _: build.library(), range(4)))
    assert len(paths) == 1
    assert paths.pop().read_text() == "built\n"
    assert sum("-shared" in call for call in calls()) == 1
    sources = list(build.SOURCES.glob("*.cpp"))
    assert len(calls()) == len(sources) - 1 + len(levels()) + 1


def levels():
    import platform

    return build._LEVELS.get(platform.machine(), {"portable": ()})


def test_a_failing_compiler_is_quoted_and_leaves_nothing(compiler):
    compiler("echo 'no such header' >&2; exit 3")
    with pytest.raises(WeftError, match=r"status 3: no such header"):
        build.library()
    assert [f.suffix for f in build.cache().iterdir()] == [".lock"]


def test_a_library_has_its_name_only_when_it_is_whole(compiler, monkeypatch):
    """Whoever looks meanwhile finds nothing under that name, and what fails leaves nothing."""
    compiler()

    def fails(source, target):
        assert source.parent != target.parent
        raise OSError("no rename")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="no rename"):
        build.library()
    assert [f.suffix for f in build.cache().iterdir()] == [".lock"]


def test_no_compiler_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    with pytest.raises(Unsupported, match=r"install g\+\+ or clang\+\+"):
        build.library()


def test_another_source_is_another_library(compiler, monkeypatch, tmp_path):
    compiler()
    first = build.library()
    copied = tmp_path / "cpp"
    copied.mkdir()
    for source in build.SOURCES.iterdir():
        (copied / source.name).write_bytes(source.read_bytes())
    (copied / "pick.cpp").write_text("// changed")
    monkeypatch.setattr(build, "SOURCES", copied)
    build._key.cache_clear()
    try:
        assert build.library() != first
    finally:
        build._key.cache_clear()


@pytest.mark.skipif(native.available() is not None, reason="no C++ compiler")
def test_the_library_offers_what_is_declared():
    from weft.native import library

    shared = ctypes.CDLL(os.fspath(build.library()))
    assert all(hasattr(shared, f"weft_{name}") for name in library._FUNCTIONS)
    assert native.level() in ("avx512", "avx2", "portable")
    with pytest.raises(WeftError, match="no kernels named neon"):
        native.set_level("neon")


def test_a_built_library_is_private(compiler):
    compiler()
    before = os.umask(0)
    try:
        path = build.library()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.with_suffix(".lock").stat().st_mode) == 0o600
    assert build.library() == path


def planted(path):
    """A link to a library of someone else's choosing."""
    elsewhere = path.parent.parent / "evil.so"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


PLANTED = {
    "file of all": (lambda path: path.chmod(0o777), r"so may be written by others \(mode 777\)"),
    "file of a group": (lambda path: path.chmod(0o770), "so may be written by others"),
    "folder of all": (lambda path: path.parent.chmod(0o777), "native may be written by others"),
    "sticky folder": (lambda path: path.parent.chmod(0o1777), "native may be written by others"),
    "above the folder": (lambda path: path.parent.parent.chmod(0o777), "cache may be written"),
    "link": (planted, "is a link"),
}


@pytest.mark.parametrize("case", PLANTED)
def test_a_library_that_others_could_have_planted_is_refused(compiler, case):
    compiler()
    path = build.library()
    plant, message = PLANTED[case]
    plant(path)
    with pytest.raises(WeftError, match=message):
        build.library()


@pytest.mark.parametrize("which", ["file", "folder", "above"])
def test_a_library_of_another_user_is_refused(compiler, monkeypatch, which):
    compiler()
    path = build.library()
    theirs = {"file": path, "folder": path.parent, "above": path.parent.parent}[which]
    if os.getuid() == 0:
        os.chown(theirs, 1234, -1)
    else:  # nobody but root can give files away: then it is this user who is another
        monkeypatch.setattr(os, "getuid", lambda: 4321)
    with pytest.raises(WeftError, match=r"belongs to user \d+"):
        build.library()


def test_a_lock_that_is_a_link_empties_nothing(compiler, tmp_path):
    compiler()
    lock = build.library().with_suffix(".lock")
    lock.with_suffix(".so").unlink()
    lock.unlink()
    (tmp_path / "thesis.tex").write_text("years of work")
    lock.symlink_to(tmp_path / "thesis.tex")
    with pytest.raises(WeftError, match="cannot be locked"):
        build.library()
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
