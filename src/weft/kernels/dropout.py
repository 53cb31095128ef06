"""Dropout inside our kernels: which weights fall, drawn on the device.

A row and a column of a line (one head of one row of the batch) draw a number each; a weight is kept
where their product, modulo 2³², reaches a threshold. So a kernel takes one product for each weight,
and all kernels that compute a weight agree about it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from weft.kernels.launch import on_grid

BLOCK = 1024  # numbers of one program


Numbers = tuple[Tensor, Tensor]  # of rows (lines, n) and of columns (lines, m), int32


@dataclass(frozen=True)
class Dropout:
    """Weights are dropped with this rate, by numbers from a seed that is drawn on the device."""

    rate: float
    seeds: Tensor  # (parts,) int64
    drawn: dict[tuple[int, ...], Numbers] = field(default_factory=dict)  # for backward

    @classmethod
    def of(cls, rate: float, device: torch.device, parts: int = 16) -> Dropout | None:
        """A new draw from torch's generator; None: no dropout."""
        if not rate:
            return None
        # On the device, so that a CUDA graph draws again at every replay.
        return cls(rate, torch.randint(0, 2**31 - 1, (parts,), device=device))

    def given(self, part: int) -> tuple[Tensor, int, float]:
        """Seed of a part, threshold of 32-bit numbers, and gain of the weights that remain."""
        return self.seeds[part:], int(self.rate * 2**32), 1 / (1 - self.rate)

    def numbers(self, part: int, lines: int, n: int, m: int) -> Numbers:
        """What rows and columns of a part draw."""
        from weft.kernels.dropout_kernels import draw_kernel

        key = (part, lines, n, m)
        if key not in self.drawn:
            rows, cols = (self.seeds.new_empty(lines, x, dtype=torch.int32) for x in (n, m))
            grid = (lines, -(-max(n, m) // BLOCK))
            on_grid(draw_kernel, grid)(self.seeds[part:], rows, cols, n, m, BLOCK=BLOCK)
            self.drawn[key] = rows, cols
        return self.drawn[key]
