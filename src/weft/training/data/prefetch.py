"""Batches on the device, prepared ahead in a thread while a GPU works on earlier ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from weft.objectives import Batch
from weft.training.data.source import Source


class Prefetch:
    """The batches of a source, in the order of steps from any step on.

    `by_length`: the rows of a batch are sorted by length, so that its parts have little padding;
    `widths`: the most different lengths that batches are padded to; `own` takes the rows of this
    process, of a batch that several share.
    """

    def __init__(
        self,
        source: Source,
        device: torch.device,
        ahead: int,
        by_length: bool = False,
        widths: int | None = None,
        own: Callable[[Batch], Batch] | None = None,
    ) -> None:
        self.source, self.device = source, device
        self.by_length, self.widths, self.own = by_length, widths, own
        self.ahead = ahead if device.type == "cuda" else 0
        self._pool = ThreadPoolExecutor(1) if self.ahead else None
        self._waiting: deque[tuple[int, Future[Batch]]] = deque()

    def batch(self, step: int) -> Batch:
        """The batch of this step, on the device."""
        if self._pool is None:
            return self.made(step).to(self.device)
        while self._waiting and self._waiting[0][0] != step:
            self._waiting.popleft()
        following = self._waiting[-1][0] + 1 if self._waiting else step
        for number in range(following, step + self.ahead + 1):
            self._waiting.append((number, self._pool.submit(self._pinned, number)))
        return self._waiting.popleft()[1].result().to(self.device)

    def made(self, step: int) -> Batch:
        """The batch of this step, on the CPU."""
        batch = self.source.batch(step)
        batch = batch.by_length(self.widths) if self.by_length else batch
        return batch if self.own is None else self.own(batch)

    def _pinned(self, step: int) -> Batch:
        return pinned(self.made(step))

    def close(self) -> None:
        """Let the thread go."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def pinned(batch: Batch) -> Batch:
    """The batch in page-locked memory, from which copies to a GPU are asynchronous."""
    return batch.with_tensors({name: t.pin_memory() for name, t in batch.tensors().items()})
