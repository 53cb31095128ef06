"""The attention function that is registered with Transformers: a model's scores under patterns.

A whole text goes to `weft.attend`, whose planner picks the kernel; padding is moved behind the real
tokens and packed documents are told apart, so a pattern counts the real tokens of its own text.
Tokens that follow a cache go there too where the cache is without gaps, else to the equation, which
takes each key at its true position. Cross-attention reads its whole source.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

from weft.errors import Unsupported, WeftError
from weft.interop.hf.plug.facts import MaskFacts
from weft.interop.hf.plug.layers import LayerPatterns, made_causal
from weft.interop.hf.plug.modules import place_of
from weft.interop.hf.plug.near_sinks import frequencies_of, split_sinks, turned_back
from weft.interop.hf.plug.packed import attend_documents
from weft.interop.hf.plug.plan import MaskPlan
from weft.interop.hf.plug.scores import (
    ScoreOptions,
    attend_masked,
    attend_masked_near,
    attend_sparsely,
    bias_table,
)
from weft.kernels.planner.context import outside_graphs
from weft.layers.padding import take
from weft.patterns import Full, Pattern

_MANY = 16  # queries after a cache that are worth a plan of blocks


class DenseMaskWarning(UserWarning):
    """A mask of the model's own, or of the caller, costs as much as dense attention."""


@dataclass(eq=False)
class PatternAttentionFunction:
    """Called by a model's attention modules instead of their own attention."""

    patterns: LayerPatterns
    name: str
    calls: int = 0  # so far, by any model

    @outside_graphs
    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: MaskPlan | Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        position_bias: Tensor | None = None,
        s_aux: Tensor | None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        """q (b, h, n, d), k and v (b, g, m, d) -> (b, n, h, d)."""
        self.calls += 1
        _refuse_others(others)
        near = frequencies_of(module)
        options = ScoreOptions(scaling, dropout, position_bias, s_aux, near)
        place, mask = place_of(module), attention_mask
        if place.cross:
            out = _attend_source(query, key, value, mask, options)
        elif isinstance(mask, Tensor):
            _refuse_near(near)
            pattern = self._pattern(place.side, place.layer)
            out = _attend_tensor(query, key, value, mask, pattern, options)
        else:
            if mask is None:
                causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
                mask = _plan_without_mask(query, key, bool(causal))
            pattern = self._pattern(place.side, place.layer)
            out = self._attend(module, (query, key, value), mask, pattern, options)
        return out.transpose(1, 2).contiguous(), None

    def _pattern(self, side: str | None, layer: int | None) -> Pattern:
        if self.patterns.by_layer and layer is None:
            raise WeftError(
                "this model does not number its attention modules, so patterns by layer need the "
                "model itself: weft.interop.hf.use(model, {...}) instead of a registered name"
            )
        return self.patterns.of(side, layer)

    def _attend(
        self,
        module: nn.Module,
        qkv: tuple[Tensor, Tensor, Tensor],
        plan: MaskPlan,
        pattern: Pattern,
        options: ScoreOptions,
    ) -> Tensor:
        """Self-attention as a plan says."""
        q, k, v = qkv
        if plan.cache is not None:
            plan.cache.check_user(self.name)
        if plan.query_start == 0 and plan.key_start == 0:
            n = plan.queries
            _check_lengths(plan, q, k)
            if options.bias is not None:
                options = options._replace(bias=options.bias[..., :n])
            return _attend_whole(q, k[:, :, :n], v[:, :, :n], plan, pattern, options)
        cols = _key_places(module, plan, k)
        if options.bias is not None and plan.cache is not None:
            options = options._replace(bias=_bias_of_kept(module, plan, options.bias, cols))
        return _attend_after(q, k, v, plan, pattern, options, cols)


def _attend_whole(
    q: Tensor, k: Tensor, v: Tensor, plan: MaskPlan, pattern: Pattern, options: ScoreOptions
) -> Tensor:
    """Queries and keys are the same tokens, nothing before them."""
    facts = plan.facts
    table = None if options.bias is None else bias_table(options.bias)
    if facts is None or (options.bias is not None and table is None):
        _warn_dense("a mask or a bias that is not a pattern")
        every = torch.arange(plan.total, device=q.device)[None]
        return _attend_pairs(q, k, v, plan, pattern, options, (every, every, plan.total))
    pattern = _within(facts, pattern, q.shape[1])
    if facts.segments is not None:
        segments = facts.segments.to(q.device)
        if pattern.relative:
            return attend_sparsely(q, k, v, pattern, options, table, segments=segments)

        def run(q: Tensor, k: Tensor, v: Tensor, valid: Tensor) -> Tensor:
            return attend_sparsely(q, k, v, pattern, options, table, valid=valid, aligned=True)

        return attend_documents(q, k, v, segments, run)
    if plan.real is None:
        return attend_sparsely(q, k, v, pattern, options, table)
    real = plan.real.to(q.device)
    if bool((real[:, :-1] | ~real[:, 1:]).all()):
        return attend_sparsely(q, k, v, pattern, options, table, valid=real, aligned=True)
    if table is not None and not _contiguous(real):
        _warn_dense("a bias by position and padding between real tokens")
        every = torch.arange(plan.total, device=q.device)[None]
        allowed = _allowed(plan, pattern, every, every, q.shape[1], length=plan.total)
        return attend_masked(q, k, v, allowed, options)
    order = (~real).to(torch.uint8).argsort(dim=1, stable=True)  # (b, n)
    q, k, v = (_moved(x, order) for x in (q, k, v))
    valid = real.gather(1, order)
    out = attend_sparsely(q, k, v, pattern, options, table, valid=valid, aligned=True)
    return _moved(out, order.argsort(dim=1))


def _attend_after(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: MaskPlan,
    pattern: Pattern,
    options: ScoreOptions,
    cols: Tensor,
) -> Tensor:
    """Queries that follow the tokens of a cache; the keys are at cols (1 or b, m)."""
    heads, n = q.shape[1], q.shape[2]
    made_causal(pattern, heads)  # refuses one that reads ahead alone
    plain = plan.function is causal_mask_function and plan.real is None and options.bias is None
    if plain and n >= _MANY and not pattern.needs_length and k.shape[2] >= n:
        own = made_causal(pattern, heads)
        follow = bool((cols.diff(dim=1) == 1).all()) and int(cols[0, -1]) == plan.total - 1
        if follow and (own.relative or int(cols[0, 0]) == 0):
            return attend_sparsely(q, k, v, own, options)
    rows = torch.arange(plan.query_start, plan.total, device=q.device)[None]
    return _attend_pairs(q, k, v, plan, pattern, options, (rows, cols, None))


def _attend_pairs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: MaskPlan,
    pattern: Pattern,
    options: ScoreOptions,
    where: tuple[Tensor, Tensor, int | None],
) -> Tensor:
    """The equation for queries and keys at (rows, cols), of a text of a length if that is known."""
    (rows, cols, length), heads = where, q.shape[1]
    allowed = _allowed(plan, pattern, rows, cols, heads, length)
    split = None if options.near is None else split_sinks(made_causal(pattern, heads))
    if split is None or options.near is None:
        return attend_masked(q, k, v, allowed, options)
    rest = _allowed(plan, split.rest, rows, cols, heads, length)
    ranks = plan.ranks.to(q.device)[:, rows[0]]
    turned = turned_back(q, ranks, split, options.near)
    return attend_masked_near(q, k, v, (allowed & rest, allowed & ~rest), turned, options)


def _allowed(
    plan: MaskPlan,
    pattern: Pattern,
    rows: Tensor,
    cols: Tensor,
    heads: int,
    length: int | None = None,
) -> Tensor:
    """Which query at rows (1, r) reads which key at cols (1 or b, c): (1 or b, 1 or h, r, c)."""
    device = rows.device
    there = (cols >= 0) & (cols < plan.total)  # the rest of a static cache is not filled
    cols = cols.clamp(0, plan.total - 1)
    allowed = plan.allowed(rows.to(plan.device), cols.to(plan.device)).to(device)
    if plan.real is not None:
        real = plan.real.to(device)
        there = there & real.gather(1, cols.expand(len(real), -1))
    allowed = allowed & there[:, None, None, :]
    ranks = plan.ranks.to(device)
    batch = max(len(ranks), len(cols))
    i = ranks[:, rows[0]][:, :, None]  # (1 or b, r, 1)
    j = ranks.expand(batch, -1).gather(1, cols.expand(batch, -1))[:, None, :]  # (1 or b, 1, c)
    each = [pattern.head(a, heads) for a in range(heads)]
    seen = {own: own.sees(i, j, length) for own in dict.fromkeys(each)}
    if len(seen) == 1:
        return allowed & seen[each[0]][:, None]
    return allowed & torch.stack([seen[own] for own in each], dim=1)


def _attend_source(
    q: Tensor, k: Tensor, v: Tensor, mask: MaskPlan | Tensor | None, options: ScoreOptions
) -> Tensor:
    """Cross-attention, which a pattern does not concern: every real token of the source is read."""
    if isinstance(mask, Tensor):
        return _attend_tensor(q, k, v, mask, Full(), options)
    valid = None
    if mask is not None and mask.attention_mask is not None:
        valid = mask.attention_mask.to(q.device, torch.bool)
        if valid.shape != (k.shape[0], k.shape[2]):
            raise WeftError(
                f"the mask of the source is {tuple(valid.shape)} for keys of batch and length "
                f"{(k.shape[0], k.shape[2])}; give encoder_attention_mask for this very source"
            )
        valid = None if bool(valid.all()) else valid
    if options.bias is None:
        return attend_sparsely(q, k, v, Full(), options, valid=valid)
    allowed = None if valid is None else valid[:, None, None, :]
    return attend_masked(q, k, v, allowed, options)


def _attend_tensor(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, pattern: Pattern, options: ScoreOptions
) -> Tensor:
    """A mask (b, 1 or h, n, m) of the caller's own, and the pattern by places in the row."""
    n, m = q.shape[2], k.shape[2]
    if mask.dim() != 4 or mask.shape[2] not in (1, n) or mask.shape[3] < m:
        raise WeftError(f"a mask of pairs is (b, 1, {n}, {m}); got {tuple(mask.shape)}")
    _warn_dense("a mask of pairs")
    mask = mask[..., :m]
    if mask.dtype != torch.bool:  # added to the scores: the lowest number hides a key
        added = mask if options.bias is None else options.bias + mask
        options = options._replace(bias=added.clamp(min=torch.finfo(mask.dtype).min / 2))
        mask = mask > torch.finfo(mask.dtype).min / 2
    i = torch.arange(m - n, m, device=q.device)[:, None]
    j = torch.arange(m, device=q.device)[None, :]
    seen = [pattern.head(a, q.shape[1]).sees(i, j, m) for a in range(q.shape[1])]
    return attend_masked(q, k, v, mask & torch.stack(seen)[None], options)


def _within(facts: MaskFacts, pattern: Pattern, heads: int) -> Pattern:
    """The user's pattern inside what the model lets a layer read."""
    return facts.own & (made_causal(pattern, heads) if facts.causal else pattern)


def _key_places(module: nn.Module, plan: MaskPlan, k: Tensor) -> Tensor:
    """Where the keys are in their text: (1 or b, m); −1: no key."""
    if plan.cache is None:
        return torch.arange(plan.key_start, plan.key_start + k.shape[2], device=k.device)[None]
    return plan.cache.places(place_of(module).layer, k)


def _bias_of_kept(module: Any, plan: MaskPlan, bias: Tensor, cols: Tensor) -> Tensor:
    """T5 counts its keys from 0 without gaps; this is the same bias at their true places."""
    if getattr(module, "has_relative_attention_bias", False):
        plan.bias_module = module
    if plan.bias_module is None:
        return bias
    n, total = plan.queries, plan.total
    full = plan.bias_module.compute_bias(
        n, total, device=cols.device, past_seen_tokens=plan.query_start
    )  # (1, h, n, total)
    b, m = cols.shape
    index = cols.clamp(min=0)[:, None, None, :].expand(b, full.shape[1], n, m)
    return full.expand(b, -1, -1, -1).gather(3, index)


def _plan_without_mask(q: Tensor, k: Tensor, causal: bool) -> MaskPlan:
    """The plan of a model that makes no mask: its queries are the last of its keys."""
    function = causal_mask_function if causal else bidirectional_mask_function
    n, m = q.shape[2], k.shape[2]
    return MaskPlan(q.shape[0], n, m - n, m, 0, function, None, q.device)


def _check_lengths(plan: MaskPlan, q: Tensor, k: Tensor) -> None:
    if q.shape[2] == plan.queries and k.shape[2] >= plan.queries and k.shape[2] == plan.keys:
        return
    raise Unsupported(
        f"an attention module got {q.shape[2]} queries and {k.shape[2]} keys, and the model's mask "
        f"is for {plan.queries} and {plan.keys}; if it reads another sequence, weft does not know "
        "it as cross-attention: use the model without a pattern"
    )


def _refuse_others(others: dict[str, Any]) -> None:
    if others.get("softcap") is not None:
        raise Unsupported(
            f"this model caps its scores (softcap={others['softcap']}), which the kernels under "
            "patterns do not; use it as it is: weft.interop.hf.use(model, None)"
        )
    if others.get("output_attentions"):
        raise Unsupported(
            "attention under a pattern keeps no weights to return; leave out output_attentions, or "
            "use(model, None) and attn_implementation='eager'"
        )
    if others.get("cache") is not None:
        raise Unsupported("a paged cache is not read under a pattern; use generate without it")


def _moved(x: Tensor, order: Tensor) -> Tensor:
    """x (b, h, n, d) in another order (b, n) of its tokens."""
    b, h, n, d = x.shape
    return take(x.transpose(1, 2).reshape(b, n, h * d), order).unflatten(2, (h, d)).transpose(1, 2)


def _contiguous(real: Tensor) -> bool:
    """Whether the real tokens of each row follow each other."""
    return bool(((real[:, 1:] != real[:, :-1]).sum(1) + real[:, 0].long() <= 2).all())


def _refuse_near(near: Tensor | None) -> None:
    if near is not None:
        raise Unsupported(
            "a mask of pairs says nothing about positions, which first tokens at the nearest "
            "position need; give a mask of tokens (b, n)"
        )


def _warn_dense(what: str) -> None:
    warnings.warn(
        f"{what} takes time and memory as dense attention does; the result is exact",
        DenseMaskWarning,
        stacklevel=2,
    )
