"""What a model's own mask function is: causal or not, a window, packed documents.

The function is asked, never taken apart: versions of Transformers fold different things into it.
Guesses (causal, both ways, a window, chunks, documents that follow each other) are compared with
its answers on pairs of real tokens. A function that Transformers made is compared on some rows,
one that holds anything else on all of them. Where no guess fits, the mask is one of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

from weft.patterns import Causal, Full, Pattern, SameBlock, Sliding

_ROWS = 64  # that a function of Transformers' own is compared on
_AT_ONCE = 1 << 22  # pairs
_ALL = 1 << 27  # pairs that documents are compared on; of more, every so many rows


class MaskFacts(NamedTuple):
    """A mask function in words."""

    causal: bool
    own: Pattern  # what the model itself lets a layer read, beside causality
    segments: Tensor | None = None  # (b, n): the number of each token's document in its row


def find_facts(plan: Any) -> MaskFacts | None:
    """The facts of a plan whose queries are all its tokens; None if no guess fits."""
    if plan.function is causal_mask_function:
        return MaskFacts(True, Full())
    if plan.function is bidirectional_mask_function:
        return MaskFacts(False, Full())
    guesses = list(_guesses(plan))
    for rows in _compared_rows(plan):
        seen = plan.allowed(rows[None], torch.arange(plan.total, device=plan.device)[None])
        guesses = [guess for guess in guesses if _fits(plan, guess, rows, seen[:, 0])]
        if not guesses:
            return None
    return guesses[0]


def _guesses(plan: Any) -> Iterator[MaskFacts]:
    """The plainest first."""
    owns: list[tuple[bool, Pattern]] = [(True, Full()), (False, Full())]
    if (size := plan.local_size) is not None:
        owns += [(True, Sliding(size)), (False, Sliding(size + 1)), (False, Sliding(size))]
        owns += [(True, SameBlock(size))]
    for causal, own in owns:
        yield MaskFacts(causal, own)
    segments = _documents(plan)
    if segments is not None:
        for causal, own in owns:
            if own.relative:
                yield MaskFacts(causal, own, segments)


def _documents(plan: Any) -> Tensor | None:
    """(b, n): documents end where a token cannot read the one before it; None: there is one."""
    if not plan.by_index or plan.real is not None or plan.total < 2:
        return None
    place = torch.arange(1, plan.total, device=plan.device)[None, None, :, None]
    row = torch.arange(plan.batch, device=plan.device)[:, None, None, None]
    joined = plan.function(row, torch.zeros_like(row), place, place - 1)
    ends = ~joined.expand(plan.batch, 1, plan.total - 1, 1)[:, 0, :, 0]  # (b, n − 1)
    if not bool(ends.any()):
        return None
    return torch.nn.functional.pad(ends.long(), (1, 0)).cumsum(1)


def _compared_rows(plan: Any) -> Iterator[Tensor]:
    """Rows, in spans where the function needs them."""
    n = plan.total
    if plan.by_index:
        fewer = _ROWS if plan.known else max(_ROWS, _ALL // (plan.batch * n))
        rows = torch.linspace(0, n - 1, min(n, fewer), device=plan.device).round().long()
    else:
        rows = torch.arange(n, device=plan.device)
    yield from rows.split(max(1, _AT_ONCE // (plan.batch * n)))


def _fits(plan: Any, guess: MaskFacts, rows: Tensor, seen: Tensor) -> bool:
    """Whether a guess agrees with seen (1 or b, r, n) on all pairs of real tokens."""
    ranks = plan.ranks
    i, j = ranks[:, rows][:, :, None], ranks[:, None, :]
    pattern = Causal() & guess.own if guess.causal else guess.own
    expected = pattern.sees(i, j)
    if guess.segments is not None:
        own = guess.segments[:, rows]
        expected = expected & (own[:, :, None] == guess.segments[:, None, :])
    wrong = expected != seen
    if plan.real is not None:
        wrong = wrong & plan.real[:, rows][:, :, None] & plan.real[:, None, :]
    return not bool(wrong.any())
