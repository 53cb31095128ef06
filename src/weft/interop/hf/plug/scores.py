"""What is done to the scores of attention besides a pattern: scale, dropout, a bias, sinks."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.kernels.attend.api import attend
from weft.kernels.attend.bias import Bias
from weft.kernels.dense.reference import dense_attention
from weft.patterns import Pattern

_AT_ONCE = 1 << 24  # pairs of a head whose scores are kept at once


class ScoreOptions(NamedTuple):
    """The further arguments of an attention function."""

    scale: float | None = None
    dropout: float = 0.0
    bias: Tensor | None = None  # (1 or b, h, n, m), added to the scores
    sinks: Tensor | None = None  # (h,): the score of a key without a value


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
    if options.sinks is None:
        return attend(q, k, v, pattern, **given)[..., :width]
    out, lse = attend(q, k, v, pattern, return_lse=True, **given)
    return with_sinks(out, lse, options.sinks)[..., :width]


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
