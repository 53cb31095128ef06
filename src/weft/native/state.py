"""The state of native decoding: sequences of different lengths inside the library."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.errors import Unsupported, WeftError
from weft.generate import Sampling
from weft.native.library import address, call

MOST_TOKENS = 128  # of one call into the library


class NativeState:
    """Sequences inside the library; freed with the last reference to it."""

    def __init__(self, owner: Any, handle: ctypes.c_void_p, rows: int) -> None:
        self.owner, self.handle, self.rows = owner, handle, rows
        weakref.finalize(self, call, "end", handle)

    @property
    def lengths(self) -> list[int]:
        """Tokens that each row has consumed."""
        return [call("length", self.handle, row) for row in range(self.rows)]

    @property
    def position(self) -> int:
        """Tokens consumed by the longest row."""
        return max(self.lengths, default=0)

    def cache_bytes(self) -> int:
        """Memory of all keys and values."""
        return int(call("cache_bytes", self.handle))

    @classmethod
    def joined(cls, states: Sequence[NativeState]) -> NativeState:
        """The rows of all states, in order, copied."""
        return gather([(state, row) for state in states for row in range(state.rows)])

    def select(self, rows: Tensor | Sequence[int]) -> NativeState:
        """The state of these rows, in this order, copied."""
        return gather([(self, int(row)) for row in rows])

    def feed(self, tokens: Sequence[Sequence[int]], every: bool = False) -> Tensor:
        """New tokens of every row -> scores after the last of each (b, vocab).

        Rows may get different numbers of tokens, at least one each; with `every`, all rows get
        equally many, and the scores of all of them come back, (b, n, vocab).
        """
        counts = [len(row) for row in tokens]
        self._check(counts)
        scores = torch.empty(sum(counts) if every else self.rows, self.owner.vocab)
        ids = np.fromiter((t for row in tokens for t in row), np.int32, sum(counts))
        rows = np.repeat(np.arange(self.rows, dtype=np.int32), counts)
        if every:
            wanted = np.arange(len(ids), dtype=np.int32)
        else:
            wanted = np.cumsum(counts, dtype=np.int32) - 1
        for start in range(0, len(ids), MOST_TOKENS):
            self._call(ids, rows, wanted, start, scores)
        return scores.unflatten(0, (self.rows, -1)) if every else scores

    def _check(self, counts: list[int]) -> None:
        """Raise before any token is read, not after some of them."""
        if len(counts) != self.rows or not all(counts):
            raise WeftError(
                f"each of the {self.rows} rows gets at least one token; got {len(counts)} rows of "
                f"{counts} tokens"
            )
        limit = self.owner.description.limit
        if limit and sum(counts) > MOST_TOKENS:
            self.owner.check_length(max(map(sum, zip(self.lengths, counts, strict=True))))

    def _call(
        self, ids: np.ndarray, rows: np.ndarray, wanted: np.ndarray, start: int, scores: Tensor
    ) -> None:
        """Feed tokens start … start + 127; writes the scores of those that are wanted."""
        end = min(start + MOST_TOKENS, len(ids))
        first, last = np.searchsorted(wanted, (start, end))
        here = np.ascontiguousarray(wanted[first:last] - start)
        part = scores[first:last]
        arrays = ids[start:end], rows[start:end]
        where = [address(array) for array in arrays]
        call("step", self.handle, end - start, *where, len(here), address(here), part.data_ptr(), 0)

    def best(self, tokens: np.ndarray) -> np.ndarray:
        """One new token for each row -> the best next token of each, in one call of the library."""
        found = np.empty(self.rows, dtype=np.int32)
        scores = self.owner.scratch(self.rows)
        rows = self.owner.counting(self.rows)
        ids = np.ascontiguousarray(tokens, dtype=np.int32)
        call(
            *("step", self.handle, self.rows, address(ids), address(rows)),
            *(self.rows, address(rows), scores.data_ptr(), address(found)),
        )
        return found

    def draw(
        self, tokens: np.ndarray, sampling: Sampling, generators: Sequence[torch.Generator]
    ) -> np.ndarray:
        """One new token for each row -> the next one of each, drawn as `Sampling.pick` draws."""
        if sampling.temperature == 0 and not sampling.remembers:
            return self.best(tokens)
        if sampling.min_p is not None or sampling.remembers:
            raise Unsupported(
                "the library draws by temperature, top_k and top_p; "
                f"use next_scores and Sampling.pick for {sampling}"
            )
        self.best(tokens)
        scores = self.owner.scratch(self.rows)
        settings = sampling.temperature, sampling.top_k or 0, sampling.top_p or 2.0
        draws = [float(torch.rand((), generator=own, dtype=torch.float64)) for own in generators]
        picked = [
            call("pick", row.data_ptr(), len(row), *settings, uniform)
            for row, uniform in zip(scores[: self.rows], draws, strict=True)
        ]
        return np.array(picked, dtype=np.int32)

    def profile(self) -> dict[str, dict[str, float]]:
        """Nanoseconds and bytes per call of each part since the last profile; resets the counts."""
        count = call("parts")
        calls = np.zeros(1, dtype=np.int64)
        times, sizes = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        call("profile", self.handle, address(calls), address(times), address(sizes))
        runs = max(int(calls[0]), 1)
        return {
            call("part_name", part).decode(): {
                "nanoseconds": float(times[part]) / runs,
                "bytes": float(sizes[part]) / runs,
            }
            for part in range(count)
            if times[part]
        }


def gather(picked: Sequence[tuple[NativeState, int]]) -> NativeState:
    """A state with these rows of some states, copied; they may have different lengths."""
    owner = picked[0][0].owner
    handles = (ctypes.c_void_p * len(picked))(*(state.handle.value for state, _ in picked))
    rows = np.array([row for _, row in picked], dtype=np.int32)
    made = ctypes.c_void_p()
    call("gather", handles, address(rows), len(rows), ctypes.byref(made))
    return NativeState(owner, made, len(picked))
