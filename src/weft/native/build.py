"""The C++ library, built at first use with the system's compiler and kept.

    <cache>/native/<key>.so        the key is a hash of sources, flags, compiler and machine

The cache is `$WEFT_CACHE`, else `~/.cache/weft`. A library that lies in `prebuilt/` beside this
file under the same key is taken first. Kernels are compiled once per instruction set and chosen at
run time, so that a cache on a shared disk serves different machines. The library is built in a
private folder and renamed; a second process that wants it waits for the first one. A library runs
as this user, so one that another user could have put there is refused (`ownership.py`).
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from weft.errors import Unsupported, WeftError
from weft.files import lock
from weft.native.ownership import check_owner, make_private

SOURCES = Path(__file__).parent / "cpp"
PREBUILT = Path(__file__).parent / "prebuilt"
_FLAGS = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-ffp-contract=fast", "-fno-math-errno")
_WIDE = ("-mavx2", "-mfma")
_LEVELS = {
    "x86_64": {
        "portable": (),
        "avx2": _WIDE,
        "avx512": (*_WIDE, *(f"-mavx512{part}" for part in ("f", "bw", "cd", "dq", "vl"))),
    }
}


def library() -> Path:
    """The library for this machine; builds it where it is not there yet."""
    compiler = find_compiler()
    name = f"{_key(compiler)}.so"
    if (PREBUILT / name).is_file():  # as much to be trusted as this file beside it
        return PREBUILT / name
    path = cache() / name
    if path.is_file():
        check_owner(path)
        return path
    if compiler is None:
        raise Unsupported(
            "native decoding is built with a C++ compiler at first use, and there is none; install "
            "g++ or clang++, or name one in $CXX"
        )
    make_private(path.parent)
    with _locked(path.with_suffix(".lock")):
        if not path.is_file():
            _build(compiler, path)
    check_owner(path)
    return path


def cache() -> Path:
    """The folder of built libraries."""
    chosen = os.environ.get("WEFT_CACHE")
    root = Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "weft"
    return root / "native"


def find_compiler() -> str | None:
    """$CXX, else g++, clang++ or c++; None where there is none."""
    wanted = os.environ.get("CXX")
    names = (wanted,) if wanted is not None else ("g++", "clang++", "c++")
    return next((found for name in names if (found := shutil.which(name))), None)


def _commands(compiler: str, scratch: Path, target: Path) -> tuple[list[list[str]], list[str]]:
    """How to compile every file, each by itself, and how to link them."""
    levels = _LEVELS.get(platform.machine(), {"portable": ()})
    jobs = []
    for source in sorted(SOURCES.glob("*.cpp")):
        if source.name == "kernels.cpp":
            jobs += [
                ["-O3", *extra, f"-DWEFT_LEVEL={level}", str(source), "-o", f"{scratch}/{level}.o"]
                for level, extra in levels.items()
            ]
        else:
            jobs.append(["-O2", str(source), "-o", f"{scratch}/{source.stem}.o"])
    objects = [job[-1] for job in jobs]
    compile_all = [[compiler, *_FLAGS, "-c", *job] for job in jobs]
    return compile_all, [compiler, "-shared", "-pthread", *objects, "-o", str(target)]


def _build(compiler: str, path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".native.", dir=path.parent) as folder:
        made = Path(folder) / "library.so"
        compile_all, link = _commands(compiler, Path(folder), made)
        running = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for command in compile_all
        ]
        said = [process.communicate()[0] for process in running]
        for command, process, text in zip(compile_all, running, said, strict=True):
            _check(process.returncode, command, text)
        done = subprocess.run(link, capture_output=True, text=True)
        _check(done.returncode, link, done.stderr)
        made.chmod(0o700)
        os.replace(made, path)


def _check(status: int, command: Sequence[str], said: str) -> None:
    if status:
        raise WeftError(
            f"{' '.join(map(str, command))} failed with status {status}: {said.strip()[-800:]}"
        )


@lru_cache(maxsize=4)
def _key(compiler: str | None) -> str:
    text = sha256()
    for source in sorted(SOURCES.iterdir()):
        text.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    version = ""
    if compiler is not None:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True)
        version = done.stdout.partition("\n")[0]
    text.update(repr((_FLAGS, _LEVELS, version, platform.machine(), platform.system())).encode())
    return text.hexdigest()[:24]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Only one process at a time; the lock ends with the process, whatever happens to it."""
    if os.name != "posix":
        raise Unsupported(
            "native decoding needs a system with POSIX threads; use the torch path here"
        )
    # Not through a link that someone left there: opening for writing would empty its target.
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise WeftError(f"{path} cannot be locked: {error.strerror}; remove it") from None
    with os.fdopen(handle, "rb+") as file:
        lock(file)
        yield
