"""The C interface of the native library, and its errors as `WeftError`."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int, c_int64, c_uint64, c_void_p
from functools import lru_cache
from typing import Any

import numpy as np

from weft.errors import Unsupported, WeftError
from weft.native.build import library

_HANDLE = POINTER(c_void_p)
# Name: (result, arguments). Those that return c_int give 0, or 1 and a message.
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "error": (c_char_p, ()),
    "level": (c_char_p, ()),
    "threads": (c_int64, ()),
    "set_threads": (c_int, (c_int,)),
    "set_level": (c_int, (c_char_p,)),
    "waits": (None, (c_void_p,)),
    "load": (c_int, (c_void_p, c_uint64, _HANDLE)),
    "unload": (None, (c_void_p,)),
    "vocab": (c_int64, (c_void_p,)),
    "start": (c_int, (c_void_p, c_int64, _HANDLE)),
    "end": (None, (c_void_p,)),
    "length": (c_int64, (c_void_p, c_int64)),
    "cache_bytes": (c_int64, (c_void_p,)),
    "gather": (c_int, (_HANDLE, c_void_p, c_int64, _HANDLE)),
    "step": (
        c_int,
        (c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_void_p),
    ),
    "pick": (
        c_int64,
        (c_void_p, c_int64, ctypes.c_double, c_int64, ctypes.c_double, ctypes.c_double),
    ),
    "parts": (c_int64, ()),
    "part_name": (c_char_p, (c_int,)),
    "profile": (None, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "read": (c_float, (c_void_p, c_int64)),
}


@lru_cache(maxsize=1)
def _loaded() -> ctypes.CDLL:
    shared = ctypes.CDLL(str(library()))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(shared, f"weft_{name}")
        function.restype, function.argtypes = result, arguments
    return shared


def call(name: str, *arguments: Any) -> Any:
    """Call `weft_<name>`; a failure raises WeftError with the library's message."""
    shared = _loaded()
    result = getattr(shared, f"weft_{name}")(*arguments)
    if _FUNCTIONS[name][0] is c_int and result:
        raise WeftError(shared.weft_error().decode())
    return result


def available() -> str | None:
    """Why native decoding cannot run here; None: it can."""
    try:
        _loaded()
    except (Unsupported, WeftError, OSError) as error:
        return str(error)
    return None


def address(array: np.ndarray) -> int:
    """Where a contiguous array begins."""
    return array.ctypes.data


def level() -> str:
    """The instruction set in use: avx512, avx2 or portable."""
    return call("level").decode()


def set_level(name: str) -> None:
    """Use another instruction set; one that this machine does not have is refused."""
    call("set_level", name.encode())


def threads() -> int:
    """Threads that work on a call."""
    return int(call("threads"))


def set_threads(count: int | None) -> None:
    """Use this many threads; None: one for each core that this process may use."""
    if count is not None and count < 1:
        raise WeftError(f"at least 1 thread decodes; got {count}")
    call("set_threads", count or 0)


def waits() -> dict[str, int]:
    """How threads waited for each other: at most `limit` `looks` (polls) per wait, then sleep."""
    counts = np.zeros(4, dtype=np.int64)
    call("waits", address(counts))
    return dict(zip(("waits", "looks", "sleeps", "limit"), counts.tolist(), strict=True))


def bandwidth(mebibytes: int = 512, rounds: int = 5) -> float:
    """Bytes per second that all threads together read from memory: the best of some rounds."""
    from time import perf_counter

    data = np.ones(mebibytes << 18, dtype=np.float32)
    best = 0.0
    for _ in range(rounds):
        start = perf_counter()
        call("read", address(data), data.size)
        best = max(best, data.nbytes / (perf_counter() - start))
    return best
