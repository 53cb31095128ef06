"""What is done to the scores of attention besides a pattern: scale, dropout, a bias, sinks."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import Unsupported
from weft.interop.hf.plug.near_sinks import SinkSplit, split_sinks, turned_back
from weft.kernels.attend.api import attend
from weft.kernels.attend.bias import Bias
from weft.kernels.attend.merge import merge
from weft.kernels.dense.reference import dense_attention
from weft.patterns import Pattern

_AT_ONCE = 1 << 24  # pairs of a head whose scores are kept at once


class ScoreOptions(NamedTuple):
    """The further arguments of an attention function."""

    scale: float | None = None
    dropout: float = 0.0
    bias: Tensor | None = None  # (1 or b, h, n, m), added to the scores
    sinks: Tensor | None = None  # (h,): the score of a key without a value
    near: Tensor | None = None  # (d/2,): rotary frequencies; first keys at the nearest position


def attend_sparsely(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern,
    options: ScoreOptions,
    table: Bias | None = None,
    **labels: Any,
) -> Tensor:
    """`attend` with these options, the bias as a function; widths may differ: (b, h, n, e)."""
    width = v.shape[-1]
    scale = q.shape[-1] ** -0.5 if options.scale is None else options.scale
    wide = max(width, q.shape[-1])
    q, k, v = (F.pad(x, (0, wide - x.shape[-1])) if x.shape[-1] < wide else x for x in (q, k, v))
    given = {"scale": scale, "dropout": options.dropout, "bias": table, **labels}
    split = None if options.near is None else split_sinks(pattern)
    if split is not None:
        return _attend_near(q, k, v, split, options, given)[..., :width]
    if options.sinks is None:
        return attend(q, k, v, pattern, **given)[..., :width]
    out, lse = attend(q, k, v, pattern, return_lse=True, **given)
    return with_sinks(out, lse, options.sinks)[..., :width]


def _attend_near(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    split: SinkSplit,
    options: ScoreOptions,
    given: dict[str, Any],
) -> Tensor:
    """Self-attention whose first keys are read at the nearest position; real tokens come first."""
    assert options.near is not None
    _refuse_with_near(options)
    n, m = q.shape[2], k.shape[2]
    rows = torch.arange(m - n, m, device=q.device)
    cols = torch.arange(min(split.count, m), device=q.device)
    hidden = split.rest.sees(rows[:, None], cols, m) | (cols > rows[:, None])  # (n, s)
    allowed = ~hidden[None, None]
    if given.get("valid") is not None:
        allowed = allowed & given["valid"][:, None, None, : len(cols)]
    turned = turned_back(q, rows[None], split, options.near)
    first = (k[:, :, : len(cols)], v[:, :, : len(cols)])
    sinks = dense_attention(turned, *first, mask=allowed, scale=given["scale"])
    rest = attend(q, k, v, split.rest, return_lse=True, **given)
    return merge([rest, sinks])[0]


def attend_masked_near(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    allowed: tuple[Tensor, Tensor],
    turned: Tensor,
    options: ScoreOptions,
) -> Tensor:
    """`attend_masked` with queries `turned` for the keys of the second mask; masks (…, n, m)."""
    _refuse_with_near(options)
    rows = max(1, _AT_ONCE // k.shape[2])
    parts = []
    for start in range(0, q.shape[2], rows):
        span = slice(start, start + rows)
        both = [
            dense_attention(x[:, :, span], k, v, mask=mask[:, :, span], scale=options.scale)
            for x, mask in ((q, allowed[0]), (turned, allowed[1]))
        ]
        parts.append(merge(both)[0])
    return torch.cat(parts, dim=2)


def _refuse_with_near(options: ScoreOptions) -> None:
    if options.bias is not None or options.sinks is not None or options.dropout:
        raise Unsupported(
            "first tokens at the nearest position go with no bias, no learned sinks and no dropout "
            "of weights; set attention_dropout to 0, or leave keys(first=...) out"
        )


def attend_masked(
    q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, options: ScoreOptions
) -> Tensor:
    """The equation under a mask allowed (1 or b, 1 or h, n, m): few queries, or a mask as it is."""
    n, m = q.shape[2], k.shape[2]
    rows = max(1, _AT_ONCE // m)
    parts = []
    for start in range(0, n, rows):
        span = slice(start, start + rows)
        out, lse = dense_attention(
            q[:, :, span],
            k,
            v,
            mask=None if allowed is None else allowed[:, :, span],
            bias=None if options.bias is None else options.bias[:, :, span],
            scale=options.scale,
            dropout=options.dropout,
        )
        parts.append(out if options.sinks is None else with_sinks(out, lse, options.sinks))
    return torch.cat(parts, dim=2)


def with_sinks(out: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    """The softmax with one more key for each head, of score sinks (h,) and value 0."""
    share = torch.sigmoid(lse - sinks.to(lse.dtype)[None, :, None])  # (b, h, n)
    return out * share[..., None].to(out.dtype)


def bias_table(bias: Tensor) -> Bias | None:
    """A bias (1, h, n, n) that depends on i − j alone, as a function; None where it does not."""
    if bias.shape[0] != 1 or bias.shape[2] != bias.shape[3]:
        return None
    own, n = bias[0], bias.shape[2]
    if not torch.equal(own[:, 1:, 1:], own[:, :-1, :-1]):
        return None
    # Distances −(n − 1) to n − 1: the first row backwards, then the first column.
    table = torch.cat((own[:, 0].flip(-1), own[:, 1:, 0]), dim=-1)  # (h, 2n − 1)
    return lambda head, i, j: table[head, (i - j + n - 1).clamp(0, 2 * n - 2)]
