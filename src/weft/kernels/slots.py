"""Causal attention to compressed slots of w tokens, and to the open block token by token.

    query i reads   slots s with (s + 1)·w − 1 ≤ i    and    tokens j with ⌊(i + 1) / w⌋·w ≤ j ≤ i

One softmax runs over both. A token is read once: exactly while its block is open, through its slot
from the block's last token on. Every row reads something. Letters: s slots, u blocks.
Time O(n·(m / w + w)·d), memory O(n·(m / w + w)).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.kernels.dense.reference import expand_heads


def causal_slot_attention(
    q: Tensor,
    slots: tuple[Tensor, Tensor],
    tokens: tuple[Tensor, Tensor],
    *,
    width: int,
    start: int = 0,
    dropout: float = 0.0,
) -> Tensor:
    """q (b, h, n, d) from index `start`, keys and values (b, g, ..., d) -> (b, h, n, d).

    `slots` begin at index 0, `tokens` at the first of the block that holds `start`.
    """
    n, lead = q.shape[2], start % width
    slots_k, slots_v, k, v = (expand_heads(x, q.shape[1]) for x in (*slots, *tokens))
    blocks = into_blocks(F.pad(q, (0, 0, lead, 0)), width)  # (b, h, u, w, d)
    near = blocks @ into_blocks(k, width).transpose(-1, -2)  # (b, h, u, w, w)
    near = near.flatten(2, 3)[:, :, lead : lead + n]  # (b, h, n, w)
    far = q @ slots_k.transpose(-1, -2)  # (b, h, n, s)
    scores = torch.cat((far, near), dim=-1).to(torch.promote_types(q.dtype, torch.float32))
    hidden = ~_visible(start, n, slots_k.shape[2], width, q.device)  # (n, s + w)
    weights = (scores * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf).softmax(-1)
    weights = F.dropout(weights, dropout) if dropout else weights
    far, near = weights.to(v.dtype).split((slots_k.shape[2], width), dim=-1)
    near = into_blocks(F.pad(near, (0, 0, lead, 0)), width)  # (b, h, u, w, w)
    near = (near @ into_blocks(v, width)).flatten(2, 3)[:, :, lead : lead + n]  # (b, h, n, d)
    return far @ slots_v + near


def _visible(start: int, n: int, slots: int, width: int, device: torch.device) -> Tensor:
    """Which slots, then which places of its own block, each query reads: (n, slots + width)."""
    index = torch.arange(start, start + n, device=device)[:, None]  # (n, 1)
    last = torch.arange(1, slots + 1, device=device) * width - 1
    place, own = torch.arange(width, device=device), index % width
    return torch.cat((last <= index, (place <= own) & (own < width - 1)), dim=-1)


def into_blocks(x: Tensor, width: int) -> Tensor:
    """(..., m, d) -> (..., u, width, d), zeros (False) after the end."""
    padding = -x.shape[-2] % width
    x = F.pad(x, (0, 0, 0, padding)) if padding else x
    return x.unflatten(-2, (-1, width))
