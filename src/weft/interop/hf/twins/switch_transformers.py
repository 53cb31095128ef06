"""SwitchTransformers: tokens sorted by expert once, each expert multiplies a slice of them.

Transformers asks for every expert which tokens chose it, and waits for the answer each time; here
one sort and one wait serve a layer. Tokens beyond the capacity of their expert give 0, as there.
Its attention is dispatched: `weft.interop.hf.use` puts a pattern into it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.interop.hf.twins.lean import Twin, activated
from weft.interop.hf.twins.registry import Family, Pass, forward_by, register


class ExpertsTwin(Twin):
    """The forward of the experts of a layer."""

    def __init__(self, theirs: Any, shared: Pass) -> None:
        self.theirs = theirs

    def __call__(
        self, hidden_states: Tensor, selected_experts: Tensor, routing_weights: Tensor
    ) -> Tensor:
        """(t, c), choices (t, 1, e) of which at most one is set, weights (t, 1) -> (t, c)."""
        chosen = selected_experts[:, 0]  # (t, e)
        counts = chosen.sum(0)
        count = chosen.shape[1]
        number = torch.where(chosen.any(1), chosen.argmax(1), count)  # (t,), e: none
        order = number.argsort(stable=True)
        sizes = counts.tolist()  # the one wait
        order = order[: sum(sizes)]
        rows = hidden_states.index_select(0, order).split(sizes)
        found = [_expert(self.theirs[f"expert_{at}"], x) for at, x in enumerate(rows) if len(x)]
        if not found:
            return torch.zeros_like(hidden_states)
        y = torch.cat(found) * routing_weights.index_select(0, order)
        out = torch.zeros_like(hidden_states)
        return out.index_copy(0, order, y.to(out.dtype))


def _expert(theirs: Any, x: Tensor) -> Tensor:
    """One expert on its tokens (t, c)."""
    h, last = theirs.wi(x), theirs.wo
    if (theirs.training and theirs.dropout.p) or h.dtype != last.weight.dtype:
        return theirs.wo(theirs.dropout(theirs.act(h)).to(last.weight.dtype))
    return activated(h, theirs.act, last.weight, last.bias)


register(
    "switch_transformers",
    Family(
        ("SwitchTransformers",),
        {"SwitchTransformersExperts": forward_by(ExpertsTwin)},
        note="its experts",
    ),
)
