"""What is shared by the devices that hold parts of one batch.

A module whose tokens share something in training (capacity of experts, statistics of a batch) has
an attribute `across` and asks it for sums over the whole batch. On one device that is the batch it
sees; training on several devices puts an object there that sums over them (weft.scale.data).
"""

from __future__ import annotations

from torch import Tensor


class Across:
    """One device, which sees the whole batch; several hold equally many tokens, in their order."""

    ranks = 1
    rank = 0

    def sum(self, x: Tensor) -> Tensor:
        """The sum over ranks; its gradient is summed over ranks as well."""
        return x

    def gather(self, x: Tensor) -> Tensor:
        """x of every rank: (...) -> (ranks, ...), without a gradient."""
        return x[None]


ALONE = Across()
