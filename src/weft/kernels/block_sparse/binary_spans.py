"""Binary spans: runs of 2^ℓ tokens as nodes, and which of them a token reads on each side.

    level 0 is the tokens; node p of level ℓ holds the tokens p·2^ℓ ... (p + 1)·2^ℓ − 1
    right of i:  s_0 = i + 1,  e_ℓ = s_ℓ + k·2^ℓ rounded up to a multiple of 2^(ℓ+1),  s_(ℓ+1) = e_ℓ
    left of i:   the mirror image

A token reads the nodes of level ℓ that fill s_ℓ ... e_ℓ − 1: k or k + 1 of them. So near tokens
are read one by one, far ones in ever longer spans, and none twice.

A node's key and value are those of its tokens, weighted by a softmax of one score each. Weights of
a span are a merge of its two halves', so all levels together cost O(n).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.kernels.attend.merge import merge


class Sides(NamedTuple):
    """Of one level: the nodes left of a token fill start_left ... end_left − 1, and so on."""

    start_left: Any
    end_left: Any
    start_right: Any
    end_right: Any


class Nodes(NamedTuple):
    """Nodes of one level: keys and values concatenated, and the log of their weight."""

    kv: Tensor  # (b, g, m, 2d)
    lse: Tensor  # (b, g, m)


def sides(i: Any, k: int) -> Iterator[Sides]:
    """What tokens i (an integer, or a tensor of them) read on level 0, 1, 2, ..."""
    left, right, size = i, i + 1, 1
    while True:
        start = (left - k * size) // (2 * size) * (2 * size)
        end = -(-(right + k * size) // (2 * size)) * (2 * size)
        yield Sides(start, left, right, end)
        left, right, size = start, end, 2 * size


def levels(n: int, k: int) -> int:
    """How many levels some token of n reads."""
    count = 1
    while k * (2**count - 1) < n - 1:
        count += 1
    return count


def halve(nodes: Nodes) -> Nodes:
    """The next level: pairs of nodes become one; a last odd one stays single."""
    odd = nodes.kv.shape[2] % 2
    kv = F.pad(nodes.kv, (0, 0, 0, odd)).unflatten(2, (-1, 2))  # (b, g, m, 2, 2d)
    lse = F.pad(nodes.lse, (0, odd), value=float("-inf")).unflatten(2, (-1, 2))
    kv, lse = merge([(kv[:, :, :, a], lse[:, :, :, a]) for a in range(2)])
    return Nodes(kv, lse)


def offsets(start: Tensor, read: Sides, size: int, k: int, causal: bool) -> tuple[Tensor, Tensor]:
    """Nodes that begin at `start` (broadcast): whether tokens read them, and their label.

    Labels count from the token outwards: 0 to k on the left, the farthest first, k + 1 is the token
    itself, k + 2 to 2k + 2 on the right.
    """
    left = (start >= read.start_left) & (start < read.end_left) & (start >= 0)
    right = (start >= read.start_right) & (start < read.end_right)
    label = torch.where(
        left, (start - read.end_left) // size, (start - read.start_right) // size + 1
    )
    seen = left if causal else left | right
    if size == 1:
        seen = seen | (start == read.end_left)
        label = label.masked_fill(start == read.end_left, 0)
    return seen, (label + k + 1).clamp(0, 2 * k + 2)
