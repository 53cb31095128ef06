"""Split, encode, merge: blocks are encoded separately, and only their embeddings meet.

    local = attention within blocks of `block` tokens
    e_u = mean of local over the tokens of block u
    out_i = local_i + joined_u,  u the block of i

joined is attention among the e (`merge` "attention"), or one matrix times their mean ("mean"). The
usual way to read a long document with a short encoder is a stack of `block_local` with this as its
last mixer. Padding counts nowhere. One block has no other to meet.
Time O(n w c + (n / w)² c), memory O(n w + (n / w)²), w tokens in a block.

Paper: Pappagari et al. 2019, section 3, hierarchical transformers, https://arxiv.org/abs/1910.10781
Differs from it: the joined embedding returns to the tokens of its block, so that it is a layer like
any other; blocks do not overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from weft.errors import at_least
from weft.kernels.attend.api import attend
from weft.kernels.attend.bias import dense_bias
from weft.kernels.dense.reference import dense_attention
from weft.kernels.slots import into_blocks
from weft.layers.compress import BlockCompression
from weft.layers.cross_attention import CrossAttention
from weft.mixers.base import MIXERS, AttentionMixer, Frame, Traits

Merge = Literal["attention", "mean"]


@MIXERS.register("split_encode_merge")
@dataclass(frozen=True, kw_only=True)
class SplitEncodeMerge:
    """Attention within blocks, and among their embeddings."""

    block: int = 512  # tokens in a block
    merge: Merge = "attention"  # how the embeddings of blocks meet

    traits: ClassVar[Traits] = Traits(
        family="hierarchy",
        paper="Pappagari et al. 2019, https://arxiv.org/abs/1910.10781",
        time="n w c + (n/w)² c",
        memory="n w + (n/w)²",
        context_parallel="keys of the blocks that borders cut; means of blocks as a sum over "
        "the ranks",
        note="the embedding of a block reads all of its tokens, which are of one sequence",
        tensor="its second attention reads all heads of the first",
    )

    def __post_init__(self) -> None:
        at_least(1, block=self.block)

    def build(self, frame: Frame) -> SplitEncodeMergeAttention:
        return SplitEncodeMergeAttention(self, frame)

    @classmethod
    def variants(cls) -> tuple[SplitEncodeMerge, ...]:
        """Settings that the contract suite tests."""
        return cls(block=8), cls(block=5, merge="mean")


class SplitEncodeMergeAttention(AttentionMixer):
    """Blocks as rows of a batch, then their means as tokens of a short sequence."""

    def __init__(self, config: SplitEncodeMerge, frame: Frame) -> None:
        super().__init__(config, frame)
        if config.merge == "attention":
            self.join = CrossAttention(
                frame.dim, frame.heads, frame.kv_heads, frame.head_dim, frame.bias, frame.dropout
            )
        else:
            self.to_out = nn.Linear(frame.dim, frame.dim, bias=frame.bias)
        self.mean = BlockCompression("mean", config.block, 1, frame.dim)

    def mix(
        self,
        x: Tensor,
        valid: Tensor | None,
        context: Tensor | None,
        context_valid: Tensor | None,
    ) -> Tensor:
        """Encode all blocks at once, then join their means."""
        n = x.shape[1]
        local = self._within(x, valid)
        embedding = self.mean(local[:, None], valid)[:, 0]  # (b, u, c)
        real = None
        if valid is not None:
            real = into_blocks(valid[..., None], self.config.block).any(-2)[..., 0]  # (b, u)
        joined = self._joined(embedding, real)
        return local + joined.repeat_interleave(self.config.block, dim=1)[:, :n]

    def _within(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """Attention within blocks: (b, n, c) -> (b, n, c)."""
        (b, n, _), w = x.shape, min(self.config.block, x.shape[1])
        q, k, v = (
            into_blocks(y, w).transpose(1, 2).flatten(0, 1)  # (b·u, h, w, d)
            for y in self.heads(x)
        )
        if valid is None and n % w:
            valid = torch.ones(b, n, dtype=torch.bool, device=x.device)
        if valid is not None:
            valid = into_blocks(valid[..., None], w).flatten(0, 1)[..., 0]  # (b·u, w)
        bias = self.positions.at if self.positions.biased else None
        out = attend(q, k, v, valid=valid, bias=bias, dropout=self.dropout)
        out = out.unflatten(0, (b, -1)).transpose(1, 2).flatten(2, 3)[:, :, :n]
        return self.project.out(out)

    def _joined(self, embedding: Tensor, real: Tensor | None, plain: bool = False) -> Tensor:
        """What each embedding (b, u, c) reads of the others, real where real (b, u)."""
        if self.config.merge == "attention":
            return self.join(embedding, embedding, real, plain=plain)
        if real is None:
            mean = embedding.mean(1, keepdim=True)
        else:
            weight = real[..., None].to(embedding.dtype)
            mean = (embedding * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True).clamp(1)
        return self.to_out(mean).expand_as(embedding)

    def reference(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
    ) -> Tensor:
        """Row by row, block by block."""
        y, w = torch.zeros_like(x), self.config.block
        for row in range(len(x)):
            n = x.shape[1] if valid is None else int(valid[row].sum())
            if not n:
                continue
            q, k, v = self.heads(x[row : row + 1, :n])
            parts = []
            for at in range(0, n, w):
                part = [z[:, :, at : at + w] for z in (q, k, v)]
                i = torch.arange(part[0].shape[2], device=x.device)
                bias = None
                if self.positions.biased:
                    bias = dense_bias(self.positions.at, q.shape[1], i[:, None], i[None, :])
                parts.append(self.project.out(dense_attention(*part, bias=bias)[0]))
            means = torch.stack([part.mean(1) for part in parts], dim=1)  # (1, u, c)
            joined = self._joined(means, None, plain=True)
            whole = [part + joined[:, u : u + 1] for u, part in enumerate(parts)]
            y[row, :n] = torch.cat(whole, dim=1)[0]
        return y
