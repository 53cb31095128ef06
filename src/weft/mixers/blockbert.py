"""BlockBERT: the sequence is cut into blocks, and each head reads one block, its own or a shifted.

    out_i = sum_j softmax_j(q_i · k_j / sqrt(d)) v_j,   ⌊j / w⌋ = (⌊i / w⌋ + shift of head) mod u

u blocks of w tokens hold the sequence: `blocks` of them with w = ⌈n / blocks⌉, or as many as it
takes with w = `block`. Heads of shift 0 are local, the others look far. n is the number of real
tokens of a row, so padding moves no border. One block is full attention.
Time O(n w c), memory O(n w). With `block` both are linear in n; with `blocks` they are a share
1 / blocks of full attention's.

Paper: Qiu et al. 2019, section 3, https://arxiv.org/abs/1911.02972
Differs from it: any length (the last block may be short, empty ones do not count), and a block may
have a fixed size instead of a share of the sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import WeftError, at_least
from weft.kernels.dense.reference import dense_attention, expand_heads
from weft.mixers.base import MIXERS, AttentionMixer, Frame, Traits


@MIXERS.register("blockbert")
@dataclass(frozen=True, kw_only=True)
class BlockBert:
    """Each head reads one permuted block."""

    blocks: int = 2  # blocks that a sequence is cut into
    block: int | None = None  # tokens in a block; given, it replaces `blocks`
    shifts: tuple[int, ...] = (0, 0, 0, 1)  # blocks to look ahead, shared out to the heads

    traits: ClassVar[Traits] = Traits(
        family="fixed pattern",
        paper="Qiu et al. 2019, https://arxiv.org/abs/1911.02972",
        time="n w c",
        memory="n w",
        context_parallel="tokens to the ranks of their heads and back (all-to-all)",
        exact=True,
        note="a shifted head reads a block of the same sequence, in part a later one",
    )

    def __post_init__(self) -> None:
        at_least(1, blocks=self.blocks)
        if self.block is not None:
            at_least(1, block=self.block)
        if not self.shifts:
            raise WeftError("shifts names the shift of one head or more; got none")
        for shift in self.shifts:
            at_least(0, shifts=shift)

    def shift_of(self, heads: int) -> list[int]:
        """The shift of each head: `shifts` stretched over the heads in equal runs."""
        given = len(self.shifts)
        return [self.shifts[((a + 1) * given - 1) // heads] for a in range(heads)]

    def build(self, frame: Frame) -> BlockBertAttention:
        return BlockBertAttention(self, frame)

    @classmethod
    def variants(cls) -> tuple[BlockBert, ...]:
        """Settings that the contract suite tests."""
        return cls(blocks=3, shifts=(0, 0, 1, 2)), cls(block=8, shifts=(0, 1))


class BlockBertAttention(AttentionMixer):
    """Dense attention between permuted blocks, all blocks at once."""

    shift: Tensor  # (h,)

    def __init__(self, config: BlockBert, frame: Frame) -> None:
        super().__init__(config, frame)
        shift = torch.tensor(config.shift_of(frame.heads))
        self.register_buffer("shift", shift, persistent=False)  # (h,)

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool
    ) -> Tensor:
        """Gather the block that each head reads, attend within pairs of blocks, put back."""
        n, heads = q.shape[2], q.shape[1]
        k, v = expand_heads(k, heads), expand_heads(v, heads)
        index = torch.arange(n, device=q.device)
        length = index.new_full((1,), n) if valid is None else valid.sum(1)  # (r,)
        size, w, u = self._cut(length, n)
        read, mine = self._blocks_read(length, size, u)  # (r, h, u), (1, 1, u)
        keys, real = _places(read, length, size, w)
        queries, _ = _places(mine, length, size, w)
        q, k, v = _take(q, queries), _take(k, keys), _take(v, keys)
        whole = valid is None and n % w == 0
        added = self._added(queries, keys, None if whole else real, q.dtype)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=added, dropout_p=self.dropout)
        back = index // size[:, None] * w + index % size[:, None]  # (r, n)
        back = back.clamp(max=u * w - 1)  # padding may lie beyond the blocks
        return _take(out.unflatten(1, (heads, u)).flatten(2, 3), back[:, None])

    def _cut(self, length: Tensor, n: int) -> tuple[Tensor, int, int]:
        """Tokens of a block in each row (r,), and places for blocks of all rows: w and u."""
        if self.config.block is not None:
            w = min(self.config.block, n)
            return torch.full_like(length, w), w, -(-n // w)
        size = (-(-length // self.config.blocks)).clamp(min=1)
        return size, -(-n // self.config.blocks), min(self.config.blocks, n)

    def _blocks_read(self, length: Tensor, size: Tensor, u: int) -> tuple[Tensor, Tensor]:
        """The key block of each query block (r, h, u), and its own number (1, 1, u)."""
        count = (-(-length // size)).clamp(min=1)[:, None, None]
        own = torch.arange(u, device=length.device)
        return (own + self.shift[:, None]) % count, own[None, None]

    def _added(
        self, queries: Tensor, keys: Tensor, real: Tensor | None, dtype: torch.dtype
    ) -> Tensor | None:
        """What is added to the scores: −inf at keys that are not there, and the positions' bias."""
        bias = None
        if self.positions.biased:
            head = torch.arange(keys.shape[1], device=keys.device)[:, None, None, None]
            bias = self.positions.at(head, queries[..., :, None], keys[..., None, :])
            bias = bias.flatten(1, 2).to(dtype)  # (r, h·u, w, w)
        if real is None:
            return bias
        # Rows without a real key are padding: they read anything, and stay finite.
        seen = (real | ~real.any(-1, keepdim=True)).flatten(1, 2)[:, :, None]  # (r, h·u, 1, w)
        return seen if bias is None else bias.masked_fill(~seen, float("-inf"))

    def plain_attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool
    ) -> Tensor:
        """Row by row under the dense mask of its length."""
        out, heads = torch.zeros_like(q), q.shape[1]
        shift = self.shift[:, None, None]
        for a in range(len(q)):
            n = q.shape[2] if valid is None else int(valid[a].sum())
            if not n:
                continue
            w = self.config.block or -(-n // self.config.blocks)
            i = torch.arange(n, device=q.device)
            block = i // w
            seen = block == (block[:, None] + shift) % (-(-n // w))  # (h, n, n)
            bias = None
            if self.positions.biased:
                head = torch.arange(heads, device=q.device)[:, None, None]
                bias = self.positions.at(head, i[:, None], i)
            one = [x[a : a + 1, :, :n] for x in (q, k, v)]
            out[a, :, :n] = dense_attention(*one, mask=seen, bias=bias)[0][0]
        return out


def _places(block: Tensor, length: Tensor, size: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Blocks (r, a, u) -> the positions they hold (r, a, u, width), and which of these are real."""
    size, length = size[:, None, None, None], length[:, None, None, None]
    step = torch.arange(width, device=block.device)
    place = block[..., None] * size + step
    real = (step < size) & (place < length)
    return place.masked_fill(~real, 0), real


def _take(x: Tensor, place: Tensor) -> Tensor:
    """(b, h, n, d) at positions (1 or b, 1 or h, ...) -> (b, h·u, w, d), or (b, h, n, d)."""
    b, h, _, d = x.shape
    flat = place.flatten(2)[..., None].expand(b, h, -1, d)
    taken = x.gather(2, flat)
    return taken.unflatten(2, place.shape[2:]).flatten(1, 2) if place.dim() == 4 else taken
