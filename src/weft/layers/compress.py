"""Compression along the sequence: the m tokens of keys or values become fewer slots.

    linear        slot_s = Σ_j E_sj x_j             learned E (r, length): a slot reads all tokens
    convolution   slot_s = b + Σ_t W_t x_{sw+t}     kernel = stride = w, W_t (d, d)
    depthwise     the same with a diagonal W_t
    mean, max     over the tokens of block s

All but the first work on blocks of w tokens, at any length, and are shift-equivariant: x shifted by
w tokens gives slots shifted by one. Padding counts as 0 in a sum and not at all in a mean
or maximum; a last block that is not full counts as padded.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from weft.errors import WeftError
from weft.kernels.slots import into_blocks

BlockKind = Literal["convolution", "depthwise", "mean", "max"]


class LinearCompression(nn.Module):
    """slots = E x with one E (r, length) for all heads (heads = 1), or one per head."""

    def __init__(self, length: int, rank: int, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, rank, length))
        # Xavier with gain 1/√2: slots of independent tokens are no larger than the tokens.
        nn.init.uniform_(self.weight, -((3 / (length + rank)) ** 0.5), (3 / (length + rank)) ** 0.5)

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """(b, g, m, d), valid (b, m) -> (b, g, r, d); a shorter x uses the first columns of E."""
        self.check(x.shape[2])
        return self.weight[..., : x.shape[2]] @ hide(x, valid)

    def check(self, tokens: int) -> None:
        """Refuse more tokens than E has columns."""
        if tokens > self.weight.shape[-1]:
            raise WeftError(
                f"the linear compression was built for at most {self.weight.shape[-1]} tokens; got "
                f"{tokens}; build it with Frame(length={tokens}), or compress by convolution"
            )


class BlockCompression(nn.Module):
    """One slot per block of `width` tokens; parameters for one head (heads = 1) or for each."""

    def __init__(self, kind: BlockKind, width: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.kind, self.width = kind, width
        if kind in ("convolution", "depthwise"):
            channels = (head_dim, head_dim) if kind == "convolution" else (head_dim,)
            bound = (width * head_dim if kind == "convolution" else width) ** -0.5
            weight = torch.empty(heads, width, *channels).uniform_(-bound, bound)
            self.weight = nn.Parameter(weight)  # (g, w, d, d) or (g, w, d)
            self.bias = nn.Parameter(torch.zeros(heads, 1, head_dim))

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """(b, g, m, d), valid (b, m) -> (b, g, slots, d); slots without a real token are finite."""
        blocks = into_blocks(hide(x, valid), self.width)  # (b, g, s, w, d)
        if self.kind == "convolution":
            return blocks.flatten(-2) @ self.weight.flatten(1, 2) + self.bias
        if self.kind == "depthwise":
            return (blocks * self.weight[:, None]).sum(-2) + self.bias
        real = torch.ones_like(x[:, 0, :, 0], dtype=torch.bool) if valid is None else valid
        real = into_blocks(real[:, None, :, None], self.width)  # (b, 1, s, w, 1)
        if self.kind == "mean":
            work = torch.promote_types(x.dtype, torch.float32)
            return (blocks.sum(-2, dtype=work) / real.sum(-2).clamp(min=1)).to(x.dtype)
        top = blocks.masked_fill(~real, -torch.inf).amax(-2)  # (b, g, s, d)
        return top.masked_fill(~real.any(-2), 0.0)


def hide(x: Tensor, valid: Tensor | None) -> Tensor:
    """(b, g, m, d) with 0 where valid (b, m) is False."""
    return x if valid is None else x.masked_fill(~valid[:, None, :, None], 0.0)
