"""How fast and how large a run is, measured robustly while it trains.

A lap is the time of one or several steps between two moments at which the device was waited for;
evaluation and saving are outside. The time of a step is the median over laps, the first ones left
out: compilation, first allocations and now and then a busy machine do not move it.
"""

from __future__ import annotations

import time
from statistics import median

import torch

from weft.environment import process_peak

_WARM_UP = 2  # laps
_KEPT = 1000  # laps, the newest


class Stopwatch:
    """Laps of (seconds per step, tokens per second)."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.laps: list[tuple[float, float]] = []
        self._steps = self._tokens = 0
        self._since = time.perf_counter()

    def count(self, tokens: int) -> None:
        """A step was queued."""
        self._steps += 1
        self._tokens += tokens

    def lap(self) -> None:
        """The lap ends here: wait for the device."""
        if not self._steps:
            return
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        seconds = time.perf_counter() - self._since
        self.laps.append((seconds / self._steps, self._tokens / seconds))
        del self.laps[:-_KEPT]
        self._steps = self._tokens = 0

    def go(self) -> None:
        """The next lap begins here."""
        self._since = time.perf_counter()

    @property
    def steps_per_second(self) -> float | None:
        """From the median lap."""
        laps = self._typical()
        return 1.0 / median(lap[0] for lap in laps) if laps else None

    @property
    def tokens_per_second(self) -> float | None:
        """The median of the laps'."""
        laps = self._typical()
        return median(lap[1] for lap in laps) if laps else None

    def _typical(self) -> list[tuple[float, float]]:
        return self.laps[_WARM_UP:] or self.laps


class Memory:
    """Peak memory: allocated on a GPU, growth of the process on a CPU."""

    def __init__(self, device: torch.device, before: int = 0) -> None:
        self.device, self.before = device, before
        self._start = process_peak()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    @property
    def peak(self) -> int:
        """In bytes; the largest of all resumptions."""
        if self.device.type == "cuda":
            return max(self.before, torch.cuda.max_memory_allocated(self.device))
        return max(self.before, process_peak() - self._start)
