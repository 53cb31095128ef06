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
