"""Padded rows and windows by torch's own flash kernel, which reads contiguous sequences.

In a padded batch each row is its real tokens and then its padding. Taken as two sequences, of which
neither reads the other, they need no mask, and no shape depends on the lengths l of b rows of n:

    ends of sequences = 0, l_0, n, n + l_1, 2·n, ...     (2 b + 1)

So the kernel for dense attention serves batches with padding, where torch's attention under a mask
takes about four times as long. Padding attends to padding: its outputs are finite and unused. The
kernel also knows windows and dropout of weights.

Paper: Dao 2023, FlashAttention-2, https://arxiv.org/abs/2307.08691
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.kernels.dense.reference import expand_heads
from weft.kernels.planner.choice import IN_HALF, ON_GPU, Refusal
from weft.patterns import Causal, Full, Pattern, Sliding

WIDEST = 128  # of a head
NARROW = 16  # heads up to here: it fills them up to 32, and windows are faster in our own kernels
OLDEST = (8, 0)  # compute capability: Ampere
_EACH = 8  # widths of heads are multiples of it


_PATTERNS = Refusal("takes full(), causal() and sliding(w) over one sequence", "pattern")
_WIDTHS = Refusal(f"takes heads of a multiple of {_EACH} up to {WIDEST}", "width")
_FIRST = Refusal("takes rows whose real tokens come first (aligned=True)")
_AMPERE = Refusal("needs an NVIDIA GPU from Ampere on")


def refusal(
    pattern: Pattern, *, device: str, dtype: torch.dtype, width: int, same_length: bool, first: bool
) -> Refusal | None:
    """Why the kernel does not take a call; None: it does. `first`: real tokens come first."""
    if device != "cuda":
        return ON_GPU
    if dtype not in (torch.float16, torch.bfloat16):
        return IN_HALF
    if type(pattern) not in (Full, Causal, Sliding) or not same_length:
        return _PATTERNS
    if width % _EACH or width > WIDEST:
        return _WIDTHS
    if not first:
        return _FIRST
    return None if new_enough() else _AMPERE


@torch.compiler.assume_constant_result
def new_enough() -> bool:
    """Whether the GPU here, if there is one, is of a kind that the kernel was written for."""
    if torch.version.hip is not None:
        return False  # there torch brings another kernel, which was not tried
    return not torch.cuda.is_available() or torch.cuda.get_device_capability() >= OLDEST


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern,
    valid: Tensor | None,
    *,
    scale: float,
    dropout: float,
) -> Tensor:
    """q (b, h, n, d), k, v (b, g, n, d) -> (b, h, n, d); valid (b, n): real tokens come first."""
    b, h, n, _ = q.shape
    k, v = expand_heads(k, h), expand_heads(v, h)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (b, n, h, d)
    edges = None if valid is None else ends(valid)
    if edges is not None:
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))  # (b·n, h, d)
    out = sequences(
        q, k, v, edges, n, reach(pattern), type(pattern) is Causal, scale=scale, dropout=dropout
    )
    return out.view(b, n, h, -1).transpose(1, 2)


def ends(valid: Tensor) -> Tensor:
    """Where real tokens and padding end, rows concatenated, from 0 on: (b, n) -> (2 b + 1,)."""
    b, n = valid.shape
    starts = torch.arange(0, b * n, n, device=valid.device)  # (b,)
    inside = torch.stack((starts + valid.sum(1), starts + n), dim=1).flatten()  # (2 b,)
    return F.pad(inside, (1, 0)).to(torch.int32)


def reach(pattern: Pattern) -> int | None:
    """How far a query reads to either side; None: as far as there are keys."""
    return pattern.window - 1 if isinstance(pattern, Sliding) else None


def sequences(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    edges: Tensor | None,
    longest: int,
    reach: int | None,
    causal: bool,
    *,
    scale: float,
    dropout: float,
) -> Tensor:
    """(t, h, d) -> (t, h, d), sequences between edges; without edges (b, n, h, d)."""
    return torch.ops.aten._flash_attention_forward(
        *(q, k, v, edges, edges, longest, longest, dropout, causal, False),
        scale=scale,
        window_size_left=reach,
        window_size_right=reach,
    )[0]
