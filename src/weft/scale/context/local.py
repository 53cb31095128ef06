"""What a rank computes by itself: some rows of attention over some keys, wherever they stand."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.kernels.attend.bias import Bias
from weft.kernels.attend.masking import KeyLabels
from weft.kernels.attend.planner import GATHER_BLOCK, Request, flex_refusal, triton_refusal
from weft.kernels.block_sparse.flex import flex_part
from weft.kernels.block_sparse.gather import gather_attention
from weft.kernels.block_sparse.triton import BLOCKS, block_sparse_part
from weft.patterns import Pattern, select
from weft.patterns.lower import Part
from weft.patterns.region import Ints
from weft.scale.context.world import tied

Result = tuple[Tensor, Tensor]  # values (b, h, n, d) and log-sum-exp (b, h, n)


class AttentionCall(NamedTuple):
    """One call of attention: what a kernel needs besides queries, keys and values."""

    pattern: Pattern
    length: int
    bias: Bias | None
    scale: float
    dropout: float


def compute(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: Ints,
    cols: Ints,
    labels: KeyLabels | None,
    call: AttentionCall,
) -> Result:
    """Queries at positions `rows` over keys at positions `cols`, both ascending."""
    if not len(rows) or not len(cols):
        out = tied(q, k, v)
        return out * 0.0, out[..., 0].to(torch.promote_types(q.dtype, torch.float32)) - float("inf")
    part = Part(call.pattern, select(rows), select(cols), call.length)
    request = Request(
        pattern=call.pattern,
        batch=q.shape[0],
        heads=q.shape[1],
        n=len(rows),
        m=len(cols),
        device=q.device.type,
        dtype=q.dtype,
        learning=True,
        masked=labels is not None,
        biased=call.bias is not None,
        dropout=call.dropout,
        lse=True,
        width=q.shape[-1],
    )
    settings: dict[str, Any] = {"scale": call.scale, "labels": labels}
    if triton_refusal(request) is None:
        return block_sparse_part(q, k, v, part, block=BLOCKS[0], dropout=call.dropout, **settings)
    if flex_refusal(request) is None:
        return flex_part(q, k, v, part, block=128, bias=call.bias, **settings)
    settings |= {"block": part.fit(GATHER_BLOCK), "bias": call.bias, "dropout": call.dropout}
    return gather_attention(q, k, v, part, **settings)
