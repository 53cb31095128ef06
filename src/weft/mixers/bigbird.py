"""BigBird: blocks that read their neighbours, random blocks and global tokens.

    ITC   global are the first and the last block; each block reads `random` further blocks
    ETC   global are the first `global_tokens` tokens, put in front by the model; no last block

Every key counts once, whatever parts of the pattern it belongs to. The random blocks are drawn from
the whole sequence, the same in training and evaluation, and depend on the seed, the layer and the
number of blocks. Causal, the first block is read by all and random blocks lie in the past.
Time O(n (3 + random + 2) block c), memory O(n block). Decoding keeps every key.

Paper: Zaheer et al. 2020, section 2 and appendix D, https://arxiv.org/abs/2007.14062
Differs from it: the heads of a layer share their random blocks; a causal form; any length. In a
batch of rows that differ in length each row has the last block, and the draw, of its own length.

`published=True` is what published checkpoints compute: up to 5 + 2 `random` blocks are read in
full, and evaluation draws nothing: the first block is read once more for each random block, and
counts as often. Training draws as without it. It reads both ways only.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import WeftError
from weft.kernels.attend.api import attend
from weft.kernels.block_sparse.lists import BlockLists, lists_of_several
from weft.kernels.block_sparse.ragged import attend_lists, masked
from weft.kernels.block_sparse.triton import attend_several, takes_several
from weft.kernels.dense.reference import dense_attention, expand_heads
from weft.kernels.device_cache import device_cache
from weft.kernels.planner.context import outside_graphs
from weft.mixers.base import MIXERS, Frame, Mixer, Traits
from weft.mixers.base.under_pattern import PatternAttention, pattern_traits
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
    published: bool = False  # short rows in full; evaluation reads the first block for random ones

    @property
    def traits(self) -> Traits:
        """Random blocks may be read by any later token."""
        traits = pattern_traits(
            "Zaheer et al. 2020, https://arxiv.org/abs/2007.14062",
            time="n block c",
            memory="n block",
            context_parallel="keys of neighbouring and random blocks and of global ones to all; "
            "global rows by log-sum-exp",
            state="2·g·d·n" if self.random else "2·g·d·(2·block + globals)",
        )
        if not self.published:
            return traits
        note = "the published form counts the first block several times, and reads both ways"
        one_way: dict[str, Any] = {"exact": False, "causal": False, "state": None, "marks": ()}
        return dataclasses.replace(traits, **one_way, context_parallel="", note=note)

    def __post_init__(self) -> None:
        if self.random < 0 or self.global_tokens < 0:
            raise WeftError(
                f"random and global_tokens count blocks and tokens; got random={self.random}, "
                f"global_tokens={self.global_tokens}"
            )
        if self.mode == "etc" and not self.global_tokens:
            raise WeftError("mode='etc' needs global_tokens: how many leading tokens are global?")
        if self.published and self.mode == "etc":
            raise WeftError("published=True is a form of mode='itc'; got mode='etc'")
        BlockNeighbours(self.block)

    def pattern(self, frame: Frame, n: int) -> Pattern:
        """Who reads whom among n tokens."""
        last = n - (n - 1) // self.block * self.block
        if frame.causal:
            first = self.global_tokens or self.block
            seen = BlockNeighbours(self.block, 1, 0) | Sink(first)
        elif self.mode == "etc":
            seen = BlockNeighbours(self.block) | Global(first=self.global_tokens)
        else:
            seen = BlockNeighbours(self.block) | Global(first=self.block, last=last)
        if self.random:
            seen = seen | self.draw(frame)
        return Causal() & seen if frame.causal else seen

    def draw(self, frame: Frame) -> RandomBlocks:
        """The random blocks of a layer."""
        seed = 1_000_003 * (self.seed + frame.seed) + frame.layer
        return RandomBlocks(self.random, self.block, seed, spare=1, past=frame.causal)

    def build(self, frame: Frame) -> BigBirdAttention:
        return BigBirdAttention(self, frame, self.pattern(frame, self.block))

    @classmethod
    def variants(cls) -> tuple[BigBird, ...]:
        """Settings that the contract suite tests."""
        etc = cls(block=8, random=0, mode="etc", global_tokens=3)
        return cls(block=8, random=2), etc, cls(block=4, random=1, published=True)

    @property
    def whole(self) -> int:
        """The most blocks of a row that is read in full."""
        return 5 + 2 * self.random if self.published else 0


class BigBirdAttention(PatternAttention):
    """BigBird's pattern follows the length of the row where the last block is global."""

    def __init__(self, config: BigBird, frame: Frame, pattern: Pattern) -> None:
        super().__init__(config, frame, pattern)
        if config.published and self.positions.biased:
            raise WeftError("published checkpoints add no bias to scores; set positions=None")

    @property
    def again(self) -> bool:
        """Whether the first block stands for the random ones."""
        return self.config.published and not self.training

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        valid: Tensor | None,
        crossing: bool,
        segments: Tensor | None = None,
    ) -> Tensor:
        """Rows of equal length share a pattern; others have lists of blocks of their own."""
        if self.config.published:
            real = q.new_ones(len(q), q.shape[2], dtype=torch.bool) if valid is None else valid
            return self._ragged(q, k, v, real)
        plain = segments is None and not self.positions.biased and self.config.mode == "itc"
        if valid is not None and not self.frame.causal and plain:
            return self._ragged(q, k, v, valid)
        settings: dict[str, Any] = {
            "bias": self.positions.at if self.positions.biased else None,
            "dropout": self.dropout,
            "segments": segments,
        }
        if valid is None or self.frame.causal:
            pattern = self.config.pattern(self.frame, q.shape[2])
            return attend(q, k, v, pattern, valid=valid, **settings)
        out = torch.zeros_like(q)
        block, lengths = self.config.block, valid.sum(1).tolist()
        counts = [max(1, -(-length // block)) for length in lengths]
        for count in sorted(set(counts)):
            rows = torch.tensor([a for a, c in enumerate(counts) if c == count], device=q.device)
            n = min(count * block, q.shape[2])
            pattern = self.config.pattern(self.frame, n)
            settings["segments"] = None if segments is None else segments[rows, :n]
            some_q, some_k, some_v = (x[rows, :, :n] for x in (q, k, v))
            part = attend(some_q, some_k, some_v, pattern, valid=valid[rows, :n], **settings)
            out = _put(out, rows, part)
        return out

    def letters(self, tokens: int) -> dict[str, int]:
        """Leading tokens that all later ones read."""
        return {"globals": self.config.global_tokens or self.config.block}

    def first_rows(self, x: Tensor, count: int, valid: Tensor | None = None) -> Tensor:
        """Where the last block is global, it differs from row to row; the first one reads all."""
        if self.config.mode == "itc" and count > self.config.block:
            return Mixer.first_rows(self, x, count, valid)
        return super().first_rows(x, count, valid)

    def first_rows_seen(
        self, n: int, count: int, device: torch.device
    ) -> tuple[int, Tensor | None]:
        if self.config.mode == "itc":
            return n, None
        return super().first_rows_seen(n, count, device)

    def _ragged(self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor) -> Tensor:
        """Lists of blocks for each row; its first and its last block read everything."""
        block, n = self.config.block, q.shape[2]
        counts = ((valid.sum(1) + block - 1) // block).clamp(min=1)  # (b,)
        if takes_several(q, block):
            return self._fused(q, k, v, valid, counts)
        tables = _tables(self.config, self.frame, -(-n // block), self.again, q.device)
        out = attend_lists(q, k, v, valid, tables[counts - 1], block, self.dropout)
        # Rows for the last block, and unused ones for rows of the batch with a single block.
        extra = (len(tables) + 1) * block - n
        q, out = (F.pad(x, (0, 0, 0, extra)) for x in (q, out))
        start = torch.where(counts > 1, counts - 1, len(tables)) * block  # (b,)
        place = torch.arange(block, device=q.device).expand(len(q), -1)  # (b, block)
        whole = torch.cat((place, place + start[:, None]), dim=1)  # (b, 2 block)
        index = whole[:, None, :, None].expand(-1, q.shape[1], -1, q.shape[3])
        k, v = expand_heads(k, q.shape[1]), expand_heads(v, q.shape[1])
        own = masked(q.gather(2, index), k, v, valid[:, None, None], self.dropout)
        return out.scatter(2, index, own.to(out.dtype))[:, :, :n]

    @outside_graphs  # a layout cannot be part of a graph
    def _fused(self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor, counts: Tensor) -> Tensor:
        """The same by the block-sparse kernels: rows pick the layout of their number of blocks."""
        most = -(-q.shape[2] // self.config.block)
        lists = _layouts(self.config, self.frame, most, self.again, q.device)
        pick = (counts - 1).int()
        scale = self.frame.head_dim**-0.5
        return attend_several(q, k, v, valid, lists, pick, scale=scale, dropout=self.dropout)

    def plain_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        valid: Tensor | None,
        crossing: bool,
        segments: Tensor | None = None,
    ) -> Tensor:
        """Row by row, each under the dense mask of its own length."""
        out = torch.zeros_like(q)
        for a in range(len(q)):
            n = q.shape[2] if valid is None else int(valid[a].sum())
            if n and self.config.published:
                one_q, one_k, one_v = (x[a : a + 1, :, :n] for x in (q, k, v))
                times = self._times(n).to(q)  # (n, n)
                bias = times.log().expand(q.shape[1], -1, -1)
                out[a, :, :n] = dense_attention(one_q, one_k, one_v, bias=bias)[0][0]
            elif n:
                block = self.config.block
                whole = n if valid is None else min(-(-n // block) * block, q.shape[2])
                seen = mask(self.config.pattern(self.frame, whole), whole, device=q.device)
                seen = seen[:, :n, :n]
                if segments is not None:
                    seen = seen & (segments[a, :n, None] == segments[a, :n])
                one_q, one_k, one_v = (x[a : a + 1, :, :n] for x in (q, k, v))
                out[a, :, :n] = self.plain_scores(one_q, one_k, one_v, seen)[0]
        return out

    def _times(self, n: int) -> Tensor:
        """How often each of n tokens reads each in the published form: (n, n)."""
        block, random = self.config.block, self.config.random
        if -(-n // block) <= self.config.whole:
            return torch.ones(n, n)
        if self.training:
            most = -(-n // block) * block
            return mask(self.config.pattern(self.frame, most), most)[0, :n, :n].double()
        fixed = dataclasses.replace(self.config, random=0).pattern(self.frame, n)
        times = mask(fixed, n)[0].double()
        times[block : (n - 1) // block * block, :block] += random
        return times


@outside_graphs  # drawn in numpy and cached, outside of any graph
@device_cache(64)
def _tables(config: BigBird, frame: Frame, most: int, again: bool, device: torch.device) -> Tensor:
    """The key blocks of each query block, for every number of blocks: (most, most, l), −1: none."""
    return torch.as_tensor(_drawn(config, frame, most, again), device=device)


@device_cache(64)
def _layouts(
    config: BigBird, frame: Frame, most: int, again: bool, device: torch.device
) -> BlockLists:
    """Who sees whom in rows of 1, 2, ... blocks; the first and the last one read all."""
    table = _drawn(config, frame, most, again)  # (most, most, l)
    layout, row = np.ogrid[:most, :most]
    table[(row == 0) | (row == layout)] = -1
    layout, row, _ = (table >= 0).nonzero()
    every, col = np.tril_indices(most)  # in the layout of c + 1 blocks, those from 0 to c
    behind = every > 0
    entries = (
        np.concatenate((layout, every, every[behind])),
        np.concatenate((row, np.zeros_like(every), every[behind])),
        np.concatenate((table[table >= 0], col, col[behind])),
    )
    return lists_of_several(entries, (most, most, most), config.block, device)


def _drawn(config: BigBird, frame: Frame, most: int, again: bool) -> np.ndarray:
    """Entry [c − 1, u] is the list of block u in a row of c blocks, each block once.

    `again`: for each random block the first one once more.
    """
    width = max(5 + config.random, min(config.whole, most))
    table = np.full((most, most, width), -1, dtype=np.int64)
    for count in range(1, most + 1):
        if count <= config.whole:
            table[count - 1, :count, :count] = np.arange(count)
            continue
        draw = np.full((count, 0), -1)
        if config.random and not again:
            draw = config.draw(frame).table(count * config.block)
        for u in range(count):
            near = range(max(u - 1, 0), min(u + 2, count))
            found = dict.fromkeys([*near, 0, count - 1, *(x for x in draw[u].tolist() if x >= 0)])
            listed = [*found, *[0] * (config.random if again else 0)]
            table[count - 1, u, : len(listed)] = listed
    return table


def _put(out: Tensor, rows: Tensor, part: Tensor) -> Tensor:
    """Rows of the batch (r,) of out (b, h, n, d) replaced by part (r, h, m, d), m ≤ n."""
    missing = out.shape[2] - part.shape[2]
    return out.index_copy(0, rows, F.pad(part, (0, 0, 0, missing)))
