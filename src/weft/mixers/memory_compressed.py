"""Memory-compressed attention: keys and values pass a strided convolution, queries do not.

    k'_s = b + Σ_t W_t k_{sw+t},    v' likewise,    t = 0 ... w − 1,    W_t (d, d) per key head
    out_i = Σ_s softmax_s(q_i·k'_s / √d) v'_s    over the slots and one learned null slot

causal: a query reads the slots that end at or before it, so early queries read the null slot alone,
and the last tokens, whose slot is not full, are not read at all. Both ways a last block that is not
full counts with zeros in its place, and padding as 0. w = 1 with W = I is full attention, but for
the null slot.

Time O(n²/w·d), memory O(n²/w). Decoding keeps ⌊t/w⌋ slots and the t mod w tokens of the open one.
A bias by distance is refused, since a slot has no single position; rotary positions turn keys
before the convolution.

Paper: Liu et al. 2018, Generating Wikipedia by Summarizing Long Sequences, section 4.2.4,
https://arxiv.org/abs/1801.10198
Differs from it: keys and values have convolutions of their own. The paper alternates it with
block-local layers: give a stack one mixer per layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import WeftError
from weft.kernels.dense.reference import dense_attention, expand_heads
from weft.kernels.slots import into_blocks
from weft.layers.compress import BlockCompression
from weft.mixers.base import MIXERS, AttentionMixer, Frame, State, Traits
from weft.mixers.base.slot_state import SlotState, slot_numbers


@MIXERS.register("memory_compressed")
@dataclass(frozen=True, kw_only=True)
class MemoryCompressed:
    """Attention to keys and values that a convolution has shortened."""

    width: int = 3  # tokens per slot: kernel and stride of the convolution

    traits: ClassVar[Traits] = Traits(
        family="low rank",
        paper="Liu et al. 2018, https://arxiv.org/abs/1801.10198",
        time="(n²/w)·d",
        memory="n²/w",
        context_parallel="slots to all, and the keys of the block that a border cuts",
        state="2·g·d·(n/width + width)",
        causal=True,
        cross=True,
    )

    def __post_init__(self) -> None:
        if self.width < 1:
            raise WeftError(f"width counts the tokens of a slot, at least 1; got {self.width}")

    def build(self, frame: Frame) -> MemoryCompressedAttention:
        return MemoryCompressedAttention(self, frame)


class MemoryCompressedAttention(AttentionMixer):
    """softmax(q·[null, conv(k)]) [null, conv(v)] around shared projections."""

    projections = "all"

    def __init__(self, config: MemoryCompressed, frame: Frame) -> None:
        super().__init__(config, frame)
        self._refuse_bias(
            "a slot of memory_compressed holds tokens of many distances, so there is none to bias"
        )
        sizes = ("convolution", config.width, frame.kv_heads, frame.head_dim)
        self.compress_k, self.compress_v = BlockCompression(*sizes), BlockCompression(*sizes)
        self.null_k = nn.Parameter(torch.zeros(frame.kv_heads, 1, frame.head_dim))
        self.null_v = nn.Parameter(torch.zeros(frame.kv_heads, 1, frame.head_dim))

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool
    ) -> Tensor:
        """Compress, then attention over few slots."""
        if self.frame.causal and not crossing:
            whole = k.shape[2] - k.shape[2] % self.config.width
            return self.causal(q, *self.slots(k[:, :, :whole], v[:, :, :whole]))
        mask = None
        if valid is not None:
            mask = into_blocks(valid[..., None], self.config.width)  # (b, s, w, 1)
            mask = mask.any(2).transpose(1, 2)[:, None]  # (b, 1, 1, s)
        return self.read(q, self.compress_k(k, valid), self.compress_v(v, valid), mask)

    def slots(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Whole blocks of keys and values as slots."""
        return self.compress_k(k), self.compress_v(v)

    def causal(self, q: Tensor, slots_k: Tensor, slots_v: Tensor, start: int = 0) -> Tensor:
        """q (b, h, n, d) from index `start` to the slots (b, g, s, d) that have ended."""
        index = torch.arange(start, start + q.shape[2], device=q.device)[:, None]  # (n, 1)
        last = torch.arange(1, slots_k.shape[2] + 1, device=q.device) * self.config.width - 1
        return self.read(q, slots_k, slots_v, last <= index)

    def read(self, q: Tensor, slots_k: Tensor, slots_v: Tensor, mask: Tensor | None) -> Tensor:
        """The null slot and those (b, g, s, d) that the mask shows -> (b, h, n, d)."""
        null_k, null_v = (x.expand(q.shape[0], -1, -1, -1) for x in (self.null_k, self.null_v))
        k = expand_heads(torch.cat((null_k, slots_k), 2), q.shape[1])
        v = expand_heads(torch.cat((null_v, slots_v), 2), q.shape[1])
        mask = mask if mask is None else F.pad(mask, (1, 0), value=True)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.dropout)

    def plain_attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool
    ) -> Tensor:
        """Row by row over real tokens, slot by slot."""
        rows = []
        for row in range(len(q)):
            real = k.shape[2] if valid is None else int(valid[row].sum())
            own = slice(row, row + 1)
            keys = _plain_slots(self.compress_k, k[own, :, :real], self.null_k)
            values = _plain_slots(self.compress_v, v[own, :, :real], self.null_v)
            mask = torch.ones(q.shape[2], keys.shape[2], dtype=torch.bool)
            if self.frame.causal and not crossing:
                for i in range(len(mask)):
                    mask[i, 1 + (i + 1) // self.config.width :] = False
            rows.append(dense_attention(q[own], keys, values, mask=mask.to(q.device))[0])
        return torch.cat(rows)

    def start(self, batch: int = 1) -> SlotState:
        """No slots, no tokens."""
        self._need_causal()
        f = self.frame
        none = self.project.to_k.weight.new_zeros(batch, f.kv_heads, 0, f.head_dim)
        return SlotState(
            slots_k=none, slots_v=none, open_k=none, open_v=none, memory=self.project.start(batch)
        )

    def step(self, x: Tensor, state: SlotState) -> tuple[Tensor, State]:
        """Blocks that end within x become slots."""
        self._need_causal()
        q, k, v, rest = self.next_heads(x, state)
        after, *_ = state.extend(k, v, self.config.width, self.slots, **rest)
        y = self.causal(q, after.slots_k, after.slots_v, state.position)
        return self.project.out(y), after

    def state_size(self, tokens: int) -> int:
        """Whole blocks as slots, the rest as tokens."""
        self._need_causal()
        return slot_numbers(self.frame, self.config.width, tokens) + self.project.memory_size


def _plain_slots(part: BlockCompression, x: Tensor, null: Tensor) -> Tensor:
    """The null slot (g, 1, d), then one per block of (1, g, m, d), tap by tap."""
    slots = [null[None, :, 0]]
    for begin in range(0, x.shape[2], part.width):
        block = x[:, :, begin : begin + part.width]  # (1, g, _, d)
        slot = part.bias[None, :, 0]
        for t in range(block.shape[2]):
            slot = slot + torch.einsum("bgd,gde->bge", block[:, :, t], part.weight[:, t])
        slots.append(slot)
    return torch.stack(slots, dim=2)
