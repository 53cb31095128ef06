"""Linformer: keys and values are compressed along the sequence, queries read the slots.

    out_i = Σ_s softmax_s(q_i·k'_s / √d) v'_s,    k' = compress(k),    v' = compress(v)

`linear` is the paper's k' = E k, v' = F v with E, F (rank, length): rank = length and E = F = I is
full attention. A shorter input uses the first columns of E, padding enters as 0, and input longer
than `length` is an error. It mixes all tokens into each slot, so it cannot be causal.

`convolution`, `depthwise`, `mean` and `max` make one slot of w tokens and take any length; w = 1
with an identity kernel is full attention. Moving the input by w tokens in a circle moves the
output with it. They can be causal: a query reads the slots whose last token it may read, and the
tokens of the block that is still open one by one:

    slots s with (s + 1)·w − 1 ≤ i    and    tokens j with ⌊(i + 1) / w⌋·w ≤ j ≤ i

Where E does not differ from head to head and positions are not in the keys, E (x W) = (E x) W: the
tokens are compressed, and the slots projected.

Time O(n·r·d), memory O(n·r); causal time O(n·(n/w + w)·d), memory O(n·(n/w + w)). Decoding keeps
⌊t/w⌋ slots and the t mod w tokens of the open block. A bias by distance is refused, for a slot has
no single position; rotary positions turn keys before compression.

Papers: Wang et al. 2020, Linformer, section 4, https://arxiv.org/abs/2006.04768 (sharing, per-layer
ranks and pooling are there); the convolution form follows Malard 2025, Conv-Linformer.
Differs from them: padding is left out, keys may be grouped, and the block forms can be causal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import WeftError
from weft.kernels.dense.reference import dense_attention, expand_heads
from weft.kernels.slots import causal_slot_attention, into_blocks
from weft.layers.compress import BlockCompression, LinearCompression, hide
from weft.layers.projections.dense import split_heads
from weft.mixers.base import MIXERS, AttentionMixer, Frame, Mixer, State, Traits
from weft.mixers.base.slot_state import SlotState, slot_numbers

Sharing = Literal["none", "heads", "kv", "layers"]
Compress = Literal["linear", "convolution", "depthwise", "mean", "max"]
Compression = LinearCompression | BlockCompression
DEFAULT_LENGTH = 4096  # where the frame names no length


@MIXERS.register("linformer")
@dataclass(frozen=True, kw_only=True)
class Linformer:
    """Attention over compressed keys and values."""

    rank: int | tuple[int, ...] = 256  # slots at the full length; a tuple gives one per layer
    sharing: Sharing = "heads"  # none: per head; heads: E, F; kv: E = F; layers: one E for all
    compress: Compress = "linear"
    width: int | None = None  # tokens per slot of the block forms; None: ⌈length / rank⌉

    @property
    def traits(self) -> Traits:
        """The linear form reads both ways only; the block forms can also be causal."""
        linear = self.compress == "linear"
        return Traits(
            family="low rank",
            paper="Wang et al. 2020, https://arxiv.org/abs/2006.04768",
            time="n·r·d" if linear else "n·(n/w)·d",
            memory="n·r" if linear else "n·(n/w + w)",
            context_parallel="slots: sums over the ranks, or blocks of keys to all",
            state=None if linear else "2·g·d·(n/width + width)",
            causal=not linear,
            cross=True,
            note="its linear compression mixes all tokens into every slot, later ones too "
            "(compress='convolution', 'depthwise', 'mean' or 'max' can be causal)"
            if linear
            else "",
        )

    def __post_init__(self) -> None:
        ranks = self.rank if isinstance(self.rank, tuple) else (self.rank,)
        if not ranks or min(ranks) < 1:
            raise WeftError(f"rank counts slots, so it is at least 1; got rank={self.rank}")
        if self.sharing == "layers" and len(set(ranks)) > 1:
            raise WeftError(f"layers that share one E have one rank; got rank={self.rank}")
        if self.width is not None and (self.width < 1 or self.compress == "linear"):
            raise WeftError(
                f"width counts the tokens of a block, at least 1, and compress='linear' has no "
                f"blocks; got width={self.width} with compress={self.compress!r}"
            )

    @staticmethod
    def small() -> Linformer:
        """Few slots, for tests."""
        return Linformer(rank=8)

    @staticmethod
    def variants() -> tuple[Linformer, ...]:
        """Every compression, with blocks that tests cross often, and the ways to share."""
        linear = Linformer(rank=8), Linformer(rank=8, sharing="none")
        by_layer = Linformer(rank=(7, 3), sharing="kv")
        convolution = Linformer(compress="convolution", width=4, sharing="none")
        depthwise = Linformer(compress="depthwise", width=5, sharing="layers")
        pools = (Linformer(compress=kind, width=5) for kind in ("mean", "max"))
        return (*linear, by_layer, convolution, depthwise, *pools)

    def build(self, frame: Frame) -> LinformerAttention:
        return LinformerAttention(self, frame)

    @classmethod
    def tie(cls, mixers: Iterable[Mixer]) -> None:
        """Give all layers built with sharing="layers" the compression of the first of them."""
        first: dict[tuple, LinformerAttention] = {}
        for mixer in mixers:
            if isinstance(mixer, LinformerAttention) and mixer.config.sharing == "layers":
                alike = mixer.config, mixer.frame.length, mixer.frame.head_dim
                mixer.compress_k = first.setdefault(alike, mixer).compress_k

    def rank_at(self, layer: int) -> int:
        """The rank of this layer, from 0."""
        if not isinstance(self.rank, tuple):
            return self.rank
        if layer >= len(self.rank):
            raise WeftError(
                f"rank={self.rank} names {len(self.rank)} layers, but layer {layer} is built "
                f"(from 0); give one rank per layer, or one number for all"
            )
        return self.rank[layer]


class LinformerAttention(AttentionMixer):
    """softmax(q·compress(k)) compress(v) around shared projections."""

    queries_apart = True

    def __init__(self, config: Linformer, frame: Frame) -> None:
        super().__init__(config, frame)
        self._refuse_bias(
            "a slot of linformer holds tokens of many distances, so there is none to bias"
        )
        self.compress_k = self._compression()
        alone = config.sharing in ("none", "heads")
        self.compress_v = self._compression() if alone else None

    def _compression(self) -> Compression:
        config, frame = self.config, self.frame
        length = frame.length or DEFAULT_LENGTH
        rank = min(config.rank_at(frame.layer), length)
        heads = frame.kv_heads if config.sharing == "none" else 1
        if config.compress == "linear":
            return LinearCompression(length, rank, heads)
        width = config.width or -(-length // rank)
        return BlockCompression(config.compress, width, heads, frame.head_dim)

    def slots(self, k: Tensor, v: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values (b, g, m, d) -> slots (b, g, s, d)."""
        return self.compress_k(k, valid), (self.compress_v or self.compress_k)(v, valid)

    @property
    def _width(self) -> int:
        """Tokens of a block, where blocks are compressed."""
        assert isinstance(self.compress_k, BlockCompression)
        return self.compress_k.width

    @property
    def compresses_first(self) -> bool:
        """Whether tokens can be compressed before they are projected: E (x W) = (E x) W."""
        same = self.config.compress == "linear" and self.config.sharing != "none"
        return same and self.frame.positions is None and self.project.foldable

    def mix(
        self,
        x: Tensor,
        valid: Tensor | None,
        context: Tensor | None,
        context_valid: Tensor | None,
    ) -> Tensor:
        """Few slots are projected instead of all tokens, where that is the same."""
        if not self.compresses_first:
            return super().mix(x, valid, context, context_valid)
        source, real = (x, valid) if context is None else (context, context_valid)
        return self._over(self.project.q(x), source, real)

    def first_rows(self, x: Tensor, count: int, valid: Tensor | None = None) -> Tensor:
        if not self.compresses_first:
            return super().first_rows(x, count, valid)
        return self._over(self.project.q(x[:, :count]), x, valid)

    def _over(self, q: Tensor, source: Tensor, valid: Tensor | None) -> Tensor:
        """q (b, h, n, d) over the slots of a source (b, m, c) -> (b, n, c)."""
        slots = _compressed(self.compress_k, source, valid)
        k = _projected(self.project.to_k, *slots)
        if self.compress_v is not None:
            slots = _compressed(self.compress_v, source, valid)
        v = _projected(self.project.to_v, *slots)
        k, v = (expand_heads(split_heads(y, self.frame.kv_heads), q.shape[1]) for y in (k, v))
        return self.project.out(F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout))

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool
    ) -> Tensor:
        """Compress, then dense attention over few slots."""
        slots_k, slots_v = self.slots(k, v, valid)
        if self.frame.causal and not crossing:
            k, v = hide(k, valid), hide(v, valid)
            return self._causal(q, (slots_k, slots_v), (k, v))
        slots_k, slots_v = expand_heads(slots_k, q.shape[1]), expand_heads(slots_v, q.shape[1])
        mask = None
        if valid is not None and self.config.compress != "linear":
            mask = into_blocks(valid[:, None, :, None], self._width)  # (b, 1, s, w, 1)
            mask = mask.any(-2).transpose(-1, -2)  # (b, 1, 1, s)
            # A row without a real key reads slot 0: softmax stays finite, and the row is zeroed.
            mask = torch.cat((torch.ones_like(mask[..., :1]), mask[..., 1:]), dim=-1)
        y = F.scaled_dot_product_attention(
            q, slots_k, slots_v, attn_mask=mask, dropout_p=self.dropout
        )
        if mask is None or valid is None:
            return y
        return y.masked_fill(~valid.any(-1)[:, None, None, None], 0.0)

    def _causal(
        self, q: Tensor, slots: tuple[Tensor, Tensor], tokens: tuple[Tensor, Tensor], start: int = 0
    ) -> Tensor:
        return causal_slot_attention(
            q, slots, tokens, width=self._width, start=start, dropout=self.dropout
        )

    def plain_attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool
    ) -> Tensor:
        """Row by row over real tokens."""
        y = torch.zeros_like(q)
        for row in range(len(q)):
            real = slice(k.shape[2] if valid is None else int(valid[row].sum()))
            if real.stop:
                own = slice(row, row + 1)
                y[own] = self._plain_row(q[own], k[own, :, real], v[own, :, real], crossing)
        return y

    def _plain_row(self, q: Tensor, k: Tensor, v: Tensor, crossing: bool) -> Tensor:
        """One row (1, h, n, d) and its real keys and values; causally query by query."""
        short_k, short_v = self._plain_slots(k, v)
        if not self.frame.causal or crossing:
            return dense_attention(q, short_k, short_v)[0]
        y, w = torch.zeros_like(q), self._width
        for i in range(k.shape[2]):
            closed = (i + 1) // w
            keys = torch.cat((short_k[:, :, :closed], k[:, :, closed * w : i + 1]), dim=2)
            values = torch.cat((short_v[:, :, :closed], v[:, :, closed * w : i + 1]), dim=2)
            y[:, :, i : i + 1] = dense_attention(q[:, :, i : i + 1], keys, values)[0]
        return y

    def _plain_slots(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        compress_v = self.compress_v or self.compress_k
        return _plain_compress(self.compress_k, k), _plain_compress(compress_v, v)

    def start(self, batch: int = 1) -> SlotState:
        """No slots, no tokens."""
        self._need_causal()
        none = self.project.to_k.weight.new_zeros(
            batch, self.frame.kv_heads, 0, self.frame.head_dim
        )
        return SlotState(slots_k=none, slots_v=none, open_k=none, open_v=none)

    def step(self, x: Tensor, state: SlotState) -> tuple[Tensor, State]:
        """Attend to slots and open block; blocks that end within x become slots."""
        self._need_causal()
        q, k, v = self.heads(x, start=state.position)
        after, k, v = state.extend(k, v, self._width, self.slots)
        slots = after.slots_k, after.slots_v
        return self.project.out(self._causal(q, slots, (k, v), start=state.position)), after

    def state_size(self, tokens: int) -> int:
        """Whole blocks as slots, the rest as tokens."""
        self._need_causal()
        return slot_numbers(self.frame, self._width, tokens)


def _compressed(compress: Compression, x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """E x and E 1 over real tokens: (b, m, c) -> (b, r, c) and (b, r, 1)."""
    ones = x.new_ones(x.shape[:2])[:, None, :, None]  # (b, 1, m, 1)
    return compress(x[:, None], valid)[:, 0], compress(ones, valid)[:, 0]


def _projected(to: nn.Linear, slots: Tensor, ones: Tensor) -> Tensor:
    """E (x Wᵀ + 1 b) = (E x) Wᵀ + (E 1) b: (b, r, c) and (b, r, 1) -> (b, r, h·d)."""
    y = F.linear(slots, to.weight)
    return y if to.bias is None else y + ones.to(y.dtype) * to.bias.to(y.dtype)


def _plain_compress(part: Compression, x: Tensor) -> Tensor:
    """Slots of (1, g, m, d), all real, one at a time."""
    g, m, d = x.shape[1:]
    slots = []
    if isinstance(part, LinearCompression):
        return torch.einsum("grm,bgmd->bgrd", part.weight.expand(g, -1, -1)[..., :m], x)
    for begin in range(0, m, part.width):
        block = x[:, :, begin : begin + part.width]  # (1, g, _, d)
        if part.kind == "mean":
            slots.append(block.mean(2))
        elif part.kind == "max":
            slots.append(block.max(2).values)
        else:
            taps = part.weight[:, : block.shape[2]].expand(
                g, *part.weight[0, : block.shape[2]].shape
            )
            sums = "gtde,bgtd->bge" if part.kind == "convolution" else "gtd,bgtd->bgd"
            slots.append(torch.einsum(sums, taps, block) + part.bias[:, 0])
    return torch.stack(slots, dim=2) if slots else x.new_zeros(1, g, 0, d)
