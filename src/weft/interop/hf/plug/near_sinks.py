"""First tokens that stay visible, at the nearest position: rotary distances a model has seen.

    score(i, sink j) = R(min(i, w + s − 1)) q_i · R(j) k_j        where j left the window of i

with w the widest window of the pattern and s the count of its first keys (`keys(first=s)`). Keys at
their true distance break rotary models beyond the trained length, and without them attention has
nowhere to go; StreamingLLM (Xiao et al. 2024) counts positions in its cache instead, which comes
to the same for a full cache. Ours leaves the keys as they are: the query is turned back.
"""

from __future__ import annotations

from functools import lru_cache, reduce
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from weft.patterns import Keys, Pattern, Sliding
from weft.patterns.lower import branches, conjuncts

_FREQUENCIES: WeakKeyDictionary[nn.Module, Tensor] = WeakKeyDictionary()


class SinkSplit(NamedTuple):
    """A pattern without its first keys, how many they are, and its widest window."""

    rest: Pattern
    count: int
    window: int


def set_frequencies(module: nn.Module, frequencies: Tensor | None) -> None:
    """Keep first tokens near in this attention module; None: at their true distance again."""
    if frequencies is None:
        _FREQUENCIES.pop(module, None)
    else:
        _FREQUENCIES[module] = frequencies


def frequencies_of(module: nn.Module) -> Tensor | None:
    """The rotary frequencies (d/2,) of a module whose first tokens are kept near."""
    return _FREQUENCIES.get(module)


@lru_cache(maxsize=256)
def split_sinks(pattern: Pattern) -> SinkSplit | None:
    """None for a pattern without first keys, or without a window that they leave."""
    rest, count, window = [], 0, 0
    for branch in branches(pattern):
        first = [c.first for c in conjuncts(branch) if isinstance(c, Keys) and not (c.last or c.at)]
        windows = [c.window for c in conjuncts(branch) if isinstance(c, Sliding)]
        if first and not windows:
            count = max(count, min(first))
            continue
        rest.append(branch)
        window = max(window, min(windows, default=0))
    if not (count and window):
        return None
    return SinkSplit(reduce(lambda a, b: a | b, rest), count, window)


def turned_back(q: Tensor, positions: Tensor, split: SinkSplit, frequencies: Tensor) -> Tensor:
    """q (b, h, n, d), rotated to positions (1 or b, n), as if they were the nearest ones."""
    turn = (split.window + split.count - 1 - positions).clamp(max=0)  # (1 or b, n), 0 or below
    angles = turn[:, None, :, None].float() * frequencies.to(q.device).float()
    cos, sin = (table.to(q.dtype) for table in (angles.cos(), angles.sin()))  # (1 or b, 1, n, d/2)
    half = frequencies.shape[0]
    first, second, others = q[..., :half], q[..., half : 2 * half], q[..., 2 * half :]
    turned = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat((*turned, others) if others.shape[-1] else turned, dim=-1)
