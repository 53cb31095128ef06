"""What an objective reads: some rows of data on one device."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

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
    reach: tuple[int, ...] | None = None  # (b,): places up to a row's last real one, on the host

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

    def by_length(self) -> Batch:
        """The rows of a padded batch on the CPU from short to long; their reach is known then."""
        if self.valid is None:
            return self
        places = torch.arange(1, self.valid.shape[1] + 1)  # (n,)
        reach = (self.valid * places).amax(1).clamp(min=1)  # (b,)
        order = reach.argsort(stable=True)
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
