"""BigBird: its blocks as lists that a head walks, its random blocks the ones that it draws itself.

Transformers draws the random blocks of each head with numpy in every training step, by a seed that
does not change; here the draw is made once for a length. In evaluation it draws nothing and reads
block 0 in their place, so block 0 counts several times. A block that a list names k times counts k
times, as it does there: the lists need no rule of their own.

numpy's global generator is left as it was, where Transformers sets its seed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.interop.hf.twins.lean import EncoderTwin, PreNormBartLayerTwin, Twin
from weft.interop.hf.twins.registry import (
    Family,
    Pass,
    bert_like,
    forward_by,
    noted,
    refuse_maps,
    register,
)
from weft.kernels.block_sparse.lists import BlockLists, lists_of_several
from weft.kernels.block_sparse.ragged import attend_lists, masked
from weft.kernels.block_sparse.triton import attend_several, takes_several
from weft.layers.projections.dense import side_by_side, split_heads

_OLD_PLANS = (1024, 3072, 4096)  # lengths with a plan of their own in Transformers


class Plan(NamedTuple):
    """The blocks that each row of each layout reads; heads that draw alike share a layout."""

    listed: Tensor  # (layouts, rows, entries), −1 for none; the first and the last row are empty
    lists: BlockLists | None  # the same with all rows, for the kernels of a GPU


class BlockTwin(Twin):
    """The forward of BigBird's block-sparse attention."""

    def __init__(self, theirs: Any, shared: Pass) -> None:
        self.theirs, self.shared = theirs, shared
        self.plans: dict[tuple[Any, ...], Plan] = {}

    def __call__(
        self,
        hidden_states: Tensor,
        band_mask: Tensor | None = None,
        from_mask: Tensor | None = None,
        to_mask: Tensor | None = None,
        from_blocked_mask: Tensor | None = None,
        to_blocked_mask: Tensor | None = None,
        output_attentions: bool = False,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """(b, n, c) -> (b, n, c), and no attention maps."""
        refuse_maps(output_attentions)
        theirs, real = self.theirs, None
        if from_blocked_mask is not None:
            padded = self.shared.once(from_blocked_mask, lambda: _padded(from_blocked_mask))
            real = from_blocked_mask.flatten(1) > 0 if padded else None  # (b, n)
        maps, heads = (theirs.query, theirs.key, theirs.value), theirs.num_attention_heads
        q, k, v = (split_heads(y, heads) for y in side_by_side(hidden_states, maps))
        out = self.attend(q, k, v, real)
        stored = out.detach()
        joined = _finish(out, len(q), real)
        return self.shared.notes.note(joined, lambda: _finish(stored, len(q), real)), None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None) -> Tensor:
        """(b, h, n, d) -> (b·h, n, d): a head is a sequence with a layout of its own."""
        b, h, n, d = q.shape
        block = self.theirs.block_size
        fused = takes_several(q, block)
        plan = self.plan(n, q.device, fused)
        q, k, v = (_lines(x) for x in (q, k, v))
        valid = None if real is None else real.repeat_interleave(h, 0)
        layouts = len(plan.listed)
        pick = torch.arange(h, device=q.device).remainder(layouts).repeat(b)
        if plan.lists is not None:
            return attend_several(q, k, v, valid, plan.lists, pick.int(), scale=d**-0.5)[:, 0]
        valid = q.new_ones(b * h, n, dtype=torch.bool) if valid is None else valid
        out = attend_lists(q, k, v, valid, plan.listed[pick], block)
        ends = torch.cat((q[:, :, :block], q[:, :, -block:]), dim=2)
        ends = masked(ends, k, v, valid[:, None, None])
        first, last = ends.split(block, dim=2)
        return torch.cat((first, out[:, :, block:-block], last), dim=2)[:, 0]

    def plan(self, n: int, device: torch.device, fused: bool) -> Plan:
        """The blocks of a length, drawn at its first use."""
        theirs = self.theirs
        key = (n, device, fused, theirs.training, theirs.seed)
        if key not in self.plans:
            entries = _listed(drawn(theirs, n), n // theirs.block_size)
            lists = _lists(entries, theirs.block_size, device) if fused else None
            self.plans[key] = Plan(torch.as_tensor(entries, device=device), lists)
        return self.plans[key]

    def __deepcopy__(self, memo: dict[int, Any]) -> BlockTwin:
        """Plans are made again."""
        from copy import deepcopy

        return memo.setdefault(
            id(self), BlockTwin(deepcopy(self.theirs, memo), deepcopy(self.shared, memo))
        )


def drawn(theirs: Any, n: int) -> np.ndarray:
    """Transformers' own draw: (layouts, blocks − 2, random); heads that agree are one layout."""
    block, count, heads = theirs.block_size, theirs.num_random_blocks, theirs.num_attention_heads
    state = np.random.get_state()
    try:
        np.random.seed(theirs.seed)
        if n in _OLD_PLANS:
            size, longest = (block, block, count), theirs.max_seqlen
            rows = [
                theirs._bigbird_block_rand_mask(longest, longest, *size, last_idx=1024)
                for _ in range(heads)
            ]
            rows = [each[: n // block - 2] for each in rows]
        else:
            plan = theirs._get_rand_attn_plan(n, block, count)
            rows = theirs._bigbird_block_rand_mask_with_head(n, n, block, block, heads, *plan)
    finally:
        np.random.set_state(state)
    found = np.stack(rows).astype(np.int64)
    return found[:1] if (found == found[0]).all() else found


def _listed(random: np.ndarray, blocks: int) -> np.ndarray:
    """Random blocks (layouts, blocks − 2, random) -> all that a row reads, but the ends' rows."""
    inner = np.arange(2, blocks - 2)
    near = np.full((blocks, 5), -1)
    near[2:-2] = np.stack((0 * inner, inner - 1, inner, inner + 1, 0 * inner + blocks - 1), axis=1)
    near[1, :4] = 0, 1, 2, blocks - 1
    near[-2, :4] = 0, blocks - 3, blocks - 2, blocks - 1
    far = np.full((len(random), blocks, random.shape[2]), -1)
    far[:, 1:-1] = random
    return np.concatenate((np.broadcast_to(near, (len(random), *near.shape)), far), axis=2)


def _lists(entries: np.ndarray, block: int, device: torch.device) -> BlockLists:
    """The lists of the kernels, where the first and the last row read every block."""
    layouts, blocks, _ = entries.shape
    layout, row, place = np.nonzero(entries >= 0)
    col = entries[layout, row, place]
    whole = np.arange(blocks)
    every = np.repeat(np.arange(layouts), 2 * blocks)
    layout = np.concatenate((layout, every))
    row = np.concatenate((row, np.tile(np.repeat((0, blocks - 1), blocks), layouts)))
    col = np.concatenate((col, np.tile(whole, 2 * layouts)))
    return lists_of_several((layout, row, col), (layouts, blocks, blocks), block, device)


def _padded(blocked: Tensor) -> bool:
    """One wait for the device."""
    return not bool((blocked > 0).all())


def _lines(x: Tensor) -> Tensor:
    """(b, h, n, d) -> (b·h, 1, n, d), a view of a single row."""
    return x.transpose(0, 1) if len(x) == 1 else x.flatten(0, 1)[:, None]


def _finish(out: Tensor, b: int, real: Tensor | None) -> Tensor:
    """(b·h, n, d) -> (b, n, h·d), 0 where padded."""
    joined = out.unflatten(0, (b, -1)).transpose(1, 2).flatten(2)
    return joined if real is None else joined * real[..., None]


register(
    "big_bird",
    Family(
        ("BigBird",),
        {"BigBirdBlockSparseAttention": forward_by(BlockTwin)},
        around=bert_like("BigBird", "feed_forward_chunk"),
    ),
)
register(
    "bigbird_pegasus",
    Family(
        ("BigBirdPegasus",),
        {"BigBirdPegasusBlockSparseAttention": forward_by(BlockTwin)},
        around={
            "BigBirdPegasusEncoderLayer": noted(PreNormBartLayerTwin),
            "BigBirdPegasusEncoder": noted(EncoderTwin),
        },
    ),
)
