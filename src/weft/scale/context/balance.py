"""Which runs of a sequence each rank gets, so that none has more work than the others.

    none         rank r holds run r of `ranks`: order is kept, borders are few
    head_tail    rank r holds runs r and 2·ranks − 1 − r of 2·ranks: causal patterns become even

The pairs that patterns let see each other decide: head_tail where every mixer of the model can work
on several runs, and the busiest rank then has at least a tenth less to compute. A causal window is
even as it is, and keeps its single border.
"""

from __future__ import annotations

import numpy as np
from torch import nn

from weft.mixers.base import Mixer
from weft.patterns import picture
from weft.scale.context.families.under_pattern import pattern_of
from weft.scale.context.shards import Balance, Shards
from weft.scale.context.split import family_of
from weft.scale.context.view import pairs_of

_CHOICES: tuple[Balance, ...] = ("none", "head_tail")
_LESS = 0.9  # of the busiest rank's pairs: what a second border is worth


def balance_for(model: nn.Module, ranks: int) -> Balance:
    """The better balance at the length of the model's frame; none where it has none."""
    mixers = [each for each in model.modules() if isinstance(each, Mixer)]
    lengths = {each.frame.length for each in mixers}
    if lengths <= {None} or not all(map(_takes_runs, mixers)):
        return "none"
    length = max(each or 0 for each in lengths)
    if length < 2 * ranks:
        return "none"
    plain, even = (sum(_pairs(each, length, ranks, b) for each in mixers) for b in _CHOICES)
    return "head_tail" if np.max(even) < _LESS * np.max(plain) else "none"


def _takes_runs(mixer: Mixer) -> bool:
    return not (family_of(mixer).contiguous or mixer.frame.projection.neighbours)


def _pairs(mixer: Mixer, length: int, ranks: int, balance: Balance) -> np.ndarray:
    """Visible pairs of each rank over all heads; a mixer of mixers has none of its own."""
    if sum(isinstance(each, Mixer) for each in mixer.modules()) > 1:
        return np.zeros(ranks)
    shards, heads = Shards(length, ranks, balance), mixer.frame.heads
    kinds = picture.by_pattern(pattern_of(mixer, length), heads)
    return sum((pairs_of(kind, shards) * len(own) for kind, own in kinds), np.zeros(ranks))
