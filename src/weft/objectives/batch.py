"""What an objective reads: some rows of data on one device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows of a task; `valid` is True where a token is real, None where all are."""

    x: Tensor  # ids (b, n), or values (b, n, channels)
    valid: Tensor | None = None  # (b, n)
    second: Tensor | None = None  # the other document of a pair: (b, m)
    second_valid: Tensor | None = None  # (b, m)
    y: Tensor | None = None  # classes (b,), or numbers
    words: Tensor | None = None  # (b, n): which word of its row each token belongs to
    group: Tensor | None = None  # (b,): which group of the task a row belongs to, e.g. a position
    reach: tuple[int, ...] | None = None  # (b,): places of a row up to its last real one, or more

    def __len__(self) -> int:
        return len(self.x)

    @property
    def tokens(self) -> int:
        """Places of the batch, padding included: what the hardware works on."""
        return self.x.shape[0] * self.x.shape[1] + (
            0 if self.second is None else self.second.numel()
        )

    def tensors(self) -> dict[str, Tensor]:
        """What the batch holds, by name."""
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in held.items() if isinstance(value, Tensor)}

    def to(self, device: str | torch.device) -> Batch:
        """The same on another device; a copy from pinned memory does not wait."""
        moved = {name: t.to(device, non_blocking=True) for name, t in self.tensors().items()}
        return replace(self, **moved)

    def by_length(self, widths: int | None = None) -> Batch:
        """The rows of a padded batch on the CPU from short to long; their reach is known then.

        `widths`: a row reaches up to a multiple of its batch's width over this, or of 8 near it.
        """
        if self.valid is None:
            return self
        n = self.valid.shape[1]
        reach = (self.valid * torch.arange(1, n + 1)).amax(1).clamp(min=1)  # (b,)
        order = reach.argsort(stable=True)
        if widths is not None:
            each = 8 * -(-n // (8 * widths))
            reach = (-(-reach // each) * each).clamp(max=n)
        moved = {name: tensor[order] for name, tensor in self.tensors().items()}
        return replace(self, **moved, reach=tuple(reach[order].tolist()))

    def part(self, start: int, stop: int) -> Batch:
        """Rows start to stop − 1, without the places that none of them reaches, where known."""
        cut = {name: tensor[start:stop] for name, tensor in self.tensors().items()}
        if self.reach is None:
            return replace(self, **cut)
        reach = self.reach[start:stop]
        for name in cut.keys() & {"x", "valid", "words"}:
            cut[name] = cut[name][:, : max(reach)]
        return replace(self, **cut, reach=reach)

    def parts(self, count: int) -> Iterator[Batch]:
        """`count` parts of almost equal numbers of rows; none is empty."""
        count = min(count, len(self))
        edges = [len(self) * i // count for i in range(count + 1)]
        return (self.part(start, stop) for start, stop in pairwise(edges))
