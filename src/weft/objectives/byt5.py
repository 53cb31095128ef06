"""ByT5's numbers for the ids that span corruption of bytes uses here.

    ours      byte b: b         sentinel i: 256 + i    end: 256 + s    start: 257 + s
    ByT5's    byte b: b + 3     sentinel i: 259 + i    end: 1          start: 0 (its padding)

for s sentinels, 125 in ByT5: 384 rows of its table, of which its 2 (unknown) has no id of ours.

Paper: Xue et al. 2021, section 3, https://arxiv.org/abs/2105.13626
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.errors import WeftError


def numbers(sentinels: int) -> Tensor:
    """ByT5's number of each id of ours: (258 + sentinels,)."""
    return torch.tensor([*range(3, 259 + sentinels), 1, 0])


def to_byt5(ids: Tensor, sentinels: int = 125) -> Tensor:
    """Our ids (...) -> ByT5's (...)."""
    table = numbers(sentinels).to(ids.device)
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < len(table):
        raise WeftError(
            f"ids run from 0 to {len(table) - 1} with {sentinels} sentinels; "
            f"got {int(ids.min())} to {int(ids.max())}"
        )
    return table[ids]


def from_byt5(ids: Tensor, sentinels: int = 125) -> Tensor:
    """ByT5's ids (...) -> ours (...)."""
    known = numbers(sentinels).to(ids.device)
    same = ids[..., None] == known
    if not bool(same.any(-1).all()):
        wrong = ids[~same.any(-1)].unique().tolist()
        raise WeftError(f"ByT5's {wrong} is not an id of this model with {sentinels} sentinels")
    return same.to(torch.uint8).argmax(-1)
