"""weft's decoding state as the cache that `generate` carries.

Rows that have read equally many tokens share one state; prompts padded on the left are read without
their padding, each length by itself. So a row writes what it would write alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from weft.errors import Unsupported, WeftError


@dataclass
class EqualRows:
    """Rows of a batch that have read equally many tokens, and their state."""

    rows: Tensor  # (r,), increasing
    state: Any


class WeftCache(Cache):
    """The decoding states of a batch; its size is that of weft's states."""

    def __init__(self, start: Callable[[Tensor], Any], owner: str) -> None:
        super().__init__(layers=[])
        self.start, self.owner = start, owner  # rows (r,) -> the state before their first token
        self.groups: list[EqualRows] = []
        self.total = 0  # tokens, padding included

    def read(
        self,
        ids: Tensor,
        real: Tensor | None,
        step: Callable[[Tensor, Any], tuple[Tensor, Any]],
    ) -> Tensor:
        """New ids (b, n), real (b, n) of them -> (b, n, c) by `step`, 0 at padding."""
        if not self.groups:
            self.groups = self._grouped(ids, real)
        elif real is not None and not bool(real.all()):
            raise Unsupported(
                "padding behind tokens that a state has read cannot be left out; pad prompts on "
                "the left: tokenizer.padding_side = 'left'"
            )
        out: Tensor | None = None
        for group in self.groups:
            rows = group.rows.to(ids.device)
            own = ids[rows]
            chosen = None if real is None else real[rows]
            if chosen is not None:
                own = own[chosen].unflatten(0, (len(rows), -1))
            found, group.state = step(own, group.state)
            if len(self.groups) == 1 and found.shape[:2] == ids.shape:
                out = found
                break
            if out is None:
                out = found.new_zeros(*ids.shape, found.shape[-1])
            places = rows[:, None].expand(-1, ids.shape[1])
            if chosen is None:
                out[rows] = found
            else:
                out[places[chosen], chosen.nonzero()[:, 1]] = found.flatten(0, 1)
        self.total += ids.shape[1]
        assert out is not None
        return out

    def _grouped(self, ids: Tensor, real: Tensor | None) -> list[EqualRows]:
        """Rows by their number of real tokens."""
        every = torch.arange(len(ids), device=ids.device)
        if real is None:
            return [EqualRows(every, self.start(every))]
        lengths = real.sum(1)
        if not bool(lengths.all()):
            raise WeftError("a prompt has at least one real token; got a row of padding alone")
        groups = [every[lengths == length] for length in lengths.unique().tolist()]
        return [EqualRows(rows, self.start(rows)) for rows in groups]

    def reorder_cache(self, beam_idx: Any) -> None:
        """Beams: row r goes on from what row beam_idx[r] has read."""
        groups = []
        for group in self.groups:
            old = group.rows.to(beam_idx.device)
            rows = torch.isin(beam_idx, old).nonzero()[:, 0]
            if len(rows):
                index = torch.searchsorted(old, beam_idx[rows].contiguous())
                groups.append(EqualRows(rows, group.state.select(index)))
        self.groups = groups

    def batch_select_indices(self, indices: Tensor) -> None:
        every = torch.arange(sum(len(group.rows) for group in self.groups))
        self.reorder_cache(every[indices.cpu()])

    def batch_repeat_interleave(self, repeats: int) -> None:
        every = torch.arange(sum(len(group.rows) for group in self.groups))
        self.reorder_cache(every.repeat_interleave(repeats))

    def check_owner(self, owner: str) -> None:
        """Refuse the state of another model."""
        if owner != self.owner:
            raise WeftError(
                "this cache is the state of another model; leave out past_key_values, and the "
                "model makes its own"
            )

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove:
            raise Unsupported(
                "a decoding state does not go back, so assisted generation needs another model"
            )

    def reset(self) -> None:
        self.groups, self.total = [], 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.total

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.total + query_length, 0

    @property
    def is_croppable(self) -> bool:
        return False

    def size(self) -> int:
        """Numbers held, all rows together."""
        return sum(len(group.rows) * group.state.size() for group in self.groups)
