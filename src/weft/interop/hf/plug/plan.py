"""What a model lets its tokens read, handed from where masks are made to where attention runs.

Transformers calls a mask function once in a forward pass and gives its result to every layer. Ours
returns a `MaskPlan`, the arguments of that call: no mask is written down unless a layer needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.masking_utils import causal_mask_function, sdpa_mask

from weft.errors import Unsupported
from weft.interop.hf.plug.facts import MaskFacts, find_facts
from weft.kernels.planner.context import outside_graphs


class MaskIsPlan(Unsupported, AttributeError):
    """A model treats its mask as a tensor, and under a pattern it is not one."""


class KeyStart(int):
    """Where the keys of a cache begin, and the cache: it passes through Transformers unchanged."""

    cache: Any

    def __new__(cls, start: int, cache: Any) -> KeyStart:
        made = super().__new__(cls, start)
        made.cache = cache
        return made


@dataclass(eq=False)
class MaskPlan:
    """One call of the mask function; positions count the tokens of a row, padding too."""

    batch: int
    queries: int
    query_start: int
    keys: int
    key_start: int
    function: Callable[..., Any]  # (batch, head, query, key) indices -> whether the model allows it
    attention_mask: Tensor | None  # (b, tokens) booleans: which tokens are real
    device: torch.device
    local_size: int | None = None  # of the model's own window or chunk
    known: bool = True  # the function is one of Transformers' own
    by_index: bool = True  # it takes index tensors that broadcast
    cache: Any = None  # the cache whose keys have gaps
    bias_module: Any = None  # of T5: the module whose table the layers share

    ndim = 4  # as a mask of pairs has: what is made already is not made again

    def contiguous(self) -> MaskPlan:
        """Itself: `generate` with a static cache makes masks early, as tensors."""
        return self

    @property
    def total(self) -> int:
        """Tokens so far, those of this call included."""
        return self.query_start + self.queries

    @cached_property
    def real(self) -> Tensor | None:
        """(b, total), True at real tokens; None where all are."""
        if self.attention_mask is None:
            return None
        given = self.attention_mask.to(torch.bool)
        if given.shape[1] < self.total:
            given = F.pad(given, (0, self.total - given.shape[1]))
        given = given[:, : self.total]
        return None if bool(given.all()) else given

    @cached_property
    def ranks(self) -> Tensor:
        """(1 or b, total): the real tokens before each; patterns count these."""
        if self.real is None:
            return torch.arange(self.total, device=self.device)[None]
        return (self.real.long().cumsum(1) - 1).clamp(min=0)

    @cached_property
    def facts(self) -> MaskFacts | None:
        """What the function is, found by evaluating it; None: a mask of its own."""
        return find_facts(self)

    def allowed(self, rows: Tensor, cols: Tensor) -> Tensor:
        """Whether queries at rows (1 or b, r) may read keys at cols (1 or b, c): (1 or b, 1, r, c).

        Padding is not looked at here.
        """
        if not self.by_index:
            return self._allowed_in_spans(rows, cols)
        row = torch.arange(self.batch, device=self.device)[:, None, None, None]
        head = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=self.device)
        found = self.function(row, head, rows[:, None, :, None], cols[:, None, None, :])
        shape = (max(found.shape[0], rows.shape[0], cols.shape[0]), 1, rows.shape[1], cols.shape[1])
        return found.expand(shape)

    def _allowed_in_spans(self, rows: Tensor, cols: Tensor) -> Tensor:
        """The same for a function of single indices, which takes spans of positions."""
        if not (_is_span(rows) and _is_span(cols)):
            raise Unsupported(
                "this model masks by a function of its own, which cannot be asked about keys with "
                "gaps; give generate a cache that keeps all: past_key_values=DynamicCache()"
            )
        made = sdpa_mask(
            batch_size=self.batch,
            q_length=rows.shape[1],
            kv_length=cols.shape[1],
            q_offset=int(rows[0, 0]),
            kv_offset=int(cols[0, 0]),
            mask_function=self.function,
            allow_is_causal_skip=False,
            use_vmap=True,
            device=self.device,
        )
        assert made is not None
        return made

    def __getattr__(self, name: str) -> Any:
        raise MaskIsPlan(
            f"this model reads {name!r} of its attention mask, which is a plan under a pattern, so "
            "its attention does not go through the common interface; run it as it is: "
            "weft.interop.hf.use(model, None)"
        )

    def __getitem__(self, place: Any) -> Any:
        return self.__getattr__(f"[{place}]")


@outside_graphs
def plan_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int | Tensor = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | MaskPlan | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **others: Any,
) -> MaskPlan:
    """The mask function that is registered: it notes what it is asked for."""
    if isinstance(attention_mask, MaskPlan):
        return attention_mask
    cache = getattr(kv_offset, "cache", None)
    plan = MaskPlan(
        batch=batch_size,
        queries=int(q_length),
        query_start=int(q_offset),
        keys=int(kv_length),
        key_start=int(kv_offset),
        function=mask_function,
        attention_mask=attention_mask,
        device=torch.device(device),
        local_size=local_size,
        known=not use_vmap and (allow_is_causal_skip or allow_is_bidirectional_skip),
        by_index=not use_vmap,
        cache=cache,
    )
    if cache is not None:
        cache.note_padding(plan.real)
    return plan


def _is_span(places: Tensor) -> bool:
    return places.shape[0] == 1 and bool((places.diff(dim=1) == 1).all())
