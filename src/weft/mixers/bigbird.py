"""BigBird: blocks that read their neighbours, random blocks and global tokens.

    ITC   global are the first and the last block; each block reads `random` further blocks
    ETC   global are the first `global_tokens` tokens, put in front by the model; no last block

Every key counts once, whatever parts of the pattern it belongs to. The random blocks are drawn from
the whole sequence, the same in training and evaluation, and depend on the seed, the layer and the
number of blocks. Causal, the first block is read by all and random blocks lie in the past.
Time O(n (3 + random + 2) block c), memory O(n block). Decoding keeps every key.

Paper: Zaheer et al. 2020, section 2 and appendix D, https://arxiv.org/abs/2007.14062
Differs from it: the heads of a layer share their random blocks; a causal form; any length. A batch
of rows that differ in their number of blocks runs once per number, since the last block differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import WeftError
from weft.kernels.attend import attend
from weft.mixers.base import MIXERS, Frame, Traits
from weft.mixers.pattern_mixer import PatternAttention
from weft.patterns import BlockNeighbours, Causal, Global, Pattern, RandomBlocks, Sink
from weft.patterns.derive import mask


@MIXERS.register("bigbird")
@dataclass(frozen=True, kw_only=True)
class BigBird:
    """Window, random and global attention in blocks."""

    block: int = 64
    random: int = 3  # random blocks for each block of queries
    mode: Literal["itc", "etc"] = "itc"
    global_tokens: int = 0  # leading global tokens (ETC)
    seed: int = 0

    traits: ClassVar[Traits] = Traits(
        family="fixed pattern",
        paper="Zaheer et al. 2020, https://arxiv.org/abs/2007.14062",
        time="n block c",
        memory="n block",
        state="2 g d n",
        exact=True,
        causal=True,
        compiles=False,
        note="blocks pair positions of one sequence; its layout is planned outside the graph",
    )

    def __post_init__(self) -> None:
        if self.mode not in ("itc", "etc"):
            raise WeftError(f"mode is 'itc' or 'etc'; got mode={self.mode!r}")
        if self.random < 0 or self.global_tokens < 0:
            raise WeftError(
                f"random and global_tokens count blocks and tokens; got random={self.random}, "
                f"global_tokens={self.global_tokens}"
            )
        if self.mode == "etc" and not self.global_tokens:
            raise WeftError("mode='etc' needs global_tokens: how many leading tokens are global?")
        BlockNeighbours(self.block)

    def pattern(self, frame: Frame, n: int) -> Pattern:
        """Who reads whom among n tokens."""
        seed = 1_000_003 * (self.seed + frame.seed) + frame.layer
        last = n - (n - 1) // self.block * self.block
        if frame.causal:
            first = self.global_tokens or self.block
            seen = BlockNeighbours(self.block, 1, 0) | Sink(first)
        elif self.mode == "etc":
            seen = BlockNeighbours(self.block) | Global(first=self.global_tokens)
        else:
            seen = BlockNeighbours(self.block) | Global(first=self.block, last=last)
        if self.random:
            draw = RandomBlocks(self.random, self.block, seed, spare=1, past=frame.causal)
            seen = seen | draw
        return Causal() & seen if frame.causal else seen

    def build(self, frame: Frame) -> BigBirdAttention:
        """The module."""
        return BigBirdAttention(self, frame, self.pattern(frame, self.block))

    @classmethod
    def variants(cls) -> tuple[BigBird, ...]:
        """Settings that the contract suite tests."""
        return cls(block=8, random=2), cls(block=8, random=0, mode="etc", global_tokens=3)


class BigBirdAttention(PatternAttention):
    """BigBird's pattern follows the length of the row where the last block is global."""

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        valid: Tensor | None,
        crossing: bool,
        segments: Tensor | None = None,
    ) -> Tensor:
        """One call per number of blocks."""
        settings = {
            "bias": self.positions.at if self.positions.biased else None,
            "dropout": self.dropout,
        }
        if valid is None or self.frame.causal:
            pattern = self.config.pattern(self.frame, q.shape[2])
            return attend(q, k, v, pattern, valid=valid, segments=segments, **settings)
        out = torch.zeros_like(q)
        block, lengths = self.config.block, valid.sum(1).tolist()
        counts = [max(1, -(-length // block)) for length in lengths]
        for count in sorted(set(counts)):
            rows = torch.tensor([a for a, c in enumerate(counts) if c == count], device=q.device)
            n = min(count * block, q.shape[2])
            pattern = self.config.pattern(self.frame, n)
            some = [x[rows, :, :n] for x in (q, k, v)]
            packed = None if segments is None else segments[rows, :n]
            part = attend(*some, pattern, valid=valid[rows, :n], segments=packed, **settings)
            out = _put(out, rows, part)
        return out

    def plain_attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool
    ) -> Tensor:
        """Row by row, each under the dense mask of its own length."""
        out = torch.zeros_like(q)
        for a in range(len(q)):
            n = q.shape[2] if valid is None else int(valid[a].sum())
            if n:
                block = self.config.block
                whole = n if valid is None else min(-(-n // block) * block, q.shape[2])
                seen = mask(self.config.pattern(self.frame, whole), whole, device=q.device)
                one = [x[a : a + 1, :, :n] for x in (q, k, v)]
                out[a, :, :n] = self.plain_scores(*one, seen[:, :n, :n])[0]
        return out


def _put(out: Tensor, rows: Tensor, part: Tensor) -> Tensor:
    """Rows of the batch (r,) of out (b, h, n, d) replaced by part (r, h, m, d), m ≤ n."""
    missing = out.shape[2] - part.shape[2]
    return out.index_copy(0, rows, F.pad(part, (0, 0, 0, missing)))
