"""Compressive Transformer: a memory of recent tokens, and before it one of compressed tokens.

    keys of segment s = [last `compressed` slots ; last `memory` tokens ; the segment up to i]
    slot_u = f(x_{uc}, ..., x_{uc+c−1}),    c = `ratio`,    of tokens that have left the memory
    s_ij = ((q_i + u)·k_j + (q_i + v)·W_R R_{i−j}) / √d,    i − j counted along those keys

f is a convolution with kernel and stride c over the layer's input, its mean or its maximum; keys
and values of a slot are projections of f. A slot counts as one place in the distances. ratio = 1
with f = identity is Transformer-XL with a memory of `memory + compressed` tokens. Gradients stop at
memory and slots, though not at their projections nor at f (`detach`).

`penalty()` is the attention-reconstruction loss, for the convolution: the mean square of
attention(q, evicted tokens) − attention(q, their slots), content scores only, with gradients to f
alone. It is of the last training forward, weighted by `reconstruction`.

Time O(n·(segment + memory + compressed)·d), memory O(h·n·(segment + memory + compressed)).
Decoding keeps keys, values and inputs of the open segment and the memory, and the slots.

Paper: Rae et al. 2019, Compressive Transformers, section 3, https://arxiv.org/abs/1911.05507
Differs from it: all segments of a pass run at once, and the loss of the task reaches f as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import WeftError
from weft.kernels.dense.reference import dense_attention, expand_heads
from weft.layers.compress import BlockCompression
from weft.layers.projections.dense import split_heads
from weft.mixers.base import MIXERS, Frame, State, Traits
from weft.mixers.base.contract import check_plain_heads
from weft.mixers.base.relative import RelativeAttention, cut, sinusoid, windows

Compress = Literal["convolution", "mean", "max"]


@MIXERS.register("compressive")
@dataclass(frozen=True, kw_only=True)
class Compressive:
    """Segment-level recurrence with a compressed past."""

    segment: int = 512  # tokens that are read together
    memory: int = 512  # tokens read before the segment
    compressed: int = 512  # slots read before the memory
    ratio: int = 4  # tokens of a slot; divides segment and memory
    compress: Compress = "convolution"  # how tokens become a slot
    reconstruction: float = 1.0  # weight of the loss that `penalty()` gives
    detach: bool = True  # stop gradients at memory and slots, as in the paper

    traits: ClassVar[Traits] = Traits(
        family="recurrence",
        paper="Rae et al. 2019, https://arxiv.org/abs/1911.05507",
        time="n·(segment + memory + compressed)·d",
        memory="h·n·(segment + memory + compressed)",
        context_parallel="tokens of the segments and slots that memory reaches",
        state="2·(segment + memory + compressed)·g·d + (segment + memory)·c",
        causal=True,
        bidirectional=False,
        note="its keys are the segment and the past of the same sequence",
        tensor="its reconstruction loss reads the matrices of all heads",
    )

    def __post_init__(self) -> None:
        for field, least in (("segment", 1), ("memory", 0), ("compressed", 1), ("ratio", 1)):
            if getattr(self, field) < least:
                raise WeftError(f"{field} is at least {least}; got {field}={getattr(self, field)}")
        if self.segment % self.ratio or self.memory % self.ratio:
            raise WeftError(
                f"whole slots leave the memory: ratio divides segment and memory; got ratio="
                f"{self.ratio}, segment={self.segment}, memory={self.memory}"
            )
        if self.reconstruction < 0:
            raise WeftError(f"reconstruction is a weight, at least 0; got {self.reconstruction}")

    @staticmethod
    def small() -> Compressive:
        """A size at which some dozens of tokens fill the slots."""
        return Compressive(segment=6, memory=4, compressed=3, ratio=2)

    @staticmethod
    def variants() -> tuple[Compressive, ...]:
        """With parameters and without, and one that lets gradients through."""
        pooled = Compressive(segment=8, memory=0, compressed=5, ratio=4, compress="max")
        free = Compressive(
            segment=4, memory=8, compressed=9, ratio=2, compress="mean", detach=False
        )
        return Compressive.small(), pooled, free

    def build(self, frame: Frame) -> CompressiveAttention:
        return CompressiveAttention(self, frame)


@dataclass(kw_only=True)
class CompressiveState(State):
    """Memory and open segment with their inputs, and the slots."""

    k: Tensor  # (b, g, t, d)
    v: Tensor  # (b, g, t, d)
    x: Tensor  # (b, t, c)
    slots_k: Tensor  # (b, g, s, d)
    slots_v: Tensor  # (b, g, s, d)


class CompressiveAttention(RelativeAttention):
    """All segments at once, each with memory and slots before it."""

    def __init__(self, config: Compressive, frame: Frame) -> None:
        super().__init__(config, frame)
        check_plain_heads(config, frame)
        self.compress = BlockCompression(config.compress, config.ratio, 1, frame.dim)
        self.last: tuple[Tensor, Tensor | None] | None = None  # input of the last training forward

    def mix(
        self,
        x: Tensor,
        valid: Tensor | None,
        context: Tensor | None,
        context_valid: Tensor | None,
    ) -> Tensor:
        """All segments at once."""
        if self.training:
            self.last = x.detach(), valid
        q, k, v = self.heads(x)
        past = x.detach() if self.config.detach else x
        kept = (self.project.k(past), self.project.v(past)) if self.config.detach else (k, v)
        slots = self.slots(past)
        slots = self.project.k(slots), self.project.v(slots)  # (b, g, s, d)
        return self.project.out(self.segments(q, (k, v), kept, slots))

    def slots(self, x: Tensor) -> Tensor:
        """Whole blocks of (b, n, c) -> (b, n // ratio, c)."""
        whole = x.shape[1] - x.shape[1] % self.config.ratio
        return self.compress(x[:, None, :whole])[:, 0]

    def segments(
        self,
        q: Tensor,
        own: tuple[Tensor, Tensor],
        kept: tuple[Tensor, Tensor],
        slots: tuple[Tensor, Tensor],
    ) -> Tensor:
        """q (b, h, n, d), keys and values of the segment and of the memory (b, g, n, d), slots."""
        config, n = self.config, q.shape[2]
        size = min(config.segment, n)
        count = -(-n // size)
        before = (count - 1) * size
        memory = min(config.memory, before)
        used = min(config.compressed, max(0, before - config.memory) // config.ratio)
        k, v = (
            torch.cat(
                (
                    self.slot_windows(short, used, count),
                    windows(past, size, memory, count),
                    cut(new, size, count),
                ),
                2,
            )
            for short, past, new in zip(slots, kept, own, strict=True)
        )  # (b·s, g, m, d)
        mask = self.visible(size, count, memory, used, q.device)  # (s, a, m)
        mask = mask.repeat(q.shape[0], 1, 1)[:, None]  # (b·s, 1, a, m)
        y = self.attend(cut(q, size, count), k, v, mask)  # (b·s, h, a, d)
        return y.unflatten(0, (-1, count)).transpose(1, 2).flatten(2, 3)[:, :, :n]

    def slot_windows(self, slots: Tensor, used: int, count: int) -> Tensor:
        """Slots (b, g, _, d) -> the last `used` before each segment's memory (b·s, g, used, d)."""
        config = self.config
        if not used:
            return slots[:, :, :0].repeat_interleave(count, 0)
        each, ahead = config.segment // config.ratio, config.memory // config.ratio
        padded = F.pad(slots, (0, 0, used + ahead, 0))
        found = padded.unfold(2, used, each)[:, :, :count]  # (b, g, s, d, used)
        return found.permute(0, 2, 1, 4, 3).flatten(0, 1)

    def visible(
        self, size: int, count: int, memory: int, used: int, device: torch.device
    ) -> Tensor:
        """Which slots, memory and own tokens each token of each segment reads: (s, a, m)."""
        config = self.config
        start = torch.arange(count, device=device)[:, None, None] * size  # (s, 1, 1)
        i = torch.arange(size, device=device)[:, None]
        j = torch.arange(-memory, size, device=device)
        near = (j <= i) & (start + j >= 0)
        number = (start - config.memory) // config.ratio - used + torch.arange(used, device=device)
        return torch.cat((number.expand(-1, size, -1) >= 0, near), -1)

    def penalty(self) -> Tensor | None:
        """The attention-reconstruction loss of the last training forward; None without one."""
        config = self.config
        if config.compress != "convolution" or not config.reconstruction or self.last is None:
            return None
        x, valid = self.last
        size, count = config.segment, x.shape[1] // config.segment
        first = -(-config.memory // size)  # the first segment whose memory is full
        if count <= first:
            return None
        with torch.no_grad():
            q = cut(self.project.q(x[:, first * size : count * size]), size, count - first)
            old = x[:, first * size - config.memory : count * size - config.memory]
            old = old.unflatten(1, (count - first, size)).flatten(0, 1)  # (b·s, a, c)
            truth = dense_attention(q, self.project.k(old), self.project.v(old))[0]
        short = self.slots(old)
        k, v = (self.frozen(short, each) for each in (self.project.to_k, self.project.to_v))
        error = (dense_attention(q, k, v)[0] - truth).square().mean((1, 2, 3))  # (b·s,)
        if valid is not None:
            ends = torch.arange(first + 1, count + 1, device=x.device) * size
            real = (ends <= valid.sum(1)[:, None]).flatten()  # (b·s,)
            return config.reconstruction * (error * real).sum() / real.sum().clamp(min=1)
        return config.reconstruction * error.mean()

    def frozen(self, x: Tensor, part: nn.Linear) -> Tensor:
        """(b, n, c) -> (b, g, n, d), without gradients to the projection."""
        bias = None if part.bias is None else part.bias.detach()
        return split_heads(F.linear(x, part.weight.detach(), bias), self.frame.kv_heads)

    def reference(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
    ) -> Tensor:
        """Query by query, each with the keys it reads in a row."""
        config, h = self.config, self.frame.heads
        past = x.detach() if config.detach else x
        q, k, v = (expand_heads(t, h) for t in self.heads(x))
        _, old_k, old_v = (expand_heads(t, h) for t in self.heads(past))
        u, w, rows = self.content_bias[:, None], self.distance_bias[:, None], []
        for i in range(x.shape[1]):
            start = i // config.segment * config.segment
            first = max(0, start - config.memory)
            there = range(max(0, first // config.ratio - config.compressed), first // config.ratio)
            keys, values = [old_k[:, :, first:start]], [old_v[:, :, first:start]]
            if there:
                short = torch.stack([self._plain_slot(past, number) for number in there], 1)
                keys.insert(0, expand_heads(self.project.k(short), h))
                values.insert(0, expand_heads(self.project.v(short), h))
            keys = torch.cat((*keys, k[:, :, start : i + 1]), 2)
            values = torch.cat((*values, v[:, :, start : i + 1]), 2)
            r = sinusoid(torch.arange(keys.shape[2] - 1, -1, -1, device=x.device), x.shape[2])
            r = split_heads(self.to_r(r.to(x.dtype))[None], h)  # (1, h, _, d)
            one = q[:, :, i : i + 1]  # (b, h, 1, d)
            s = ((one + u) * keys + (one + w) * r).sum(-1) * q.shape[-1] ** -0.5  # (b, h, _)
            rows.append((s.softmax(-1)[..., None] * values).sum(2))  # (b, h, d)
        return self.project.out(torch.stack(rows, 2))

    def _plain_slot(self, x: Tensor, number: int) -> Tensor:
        """Slot `number` of (b, n, c): (b, c)."""
        block = x[:, number * self.config.ratio : (number + 1) * self.config.ratio]
        if self.config.compress == "mean":
            return block.mean(1)
        if self.config.compress == "max":
            return block.amax(1)
        taps = self.compress.weight[0]
        return torch.einsum("bti,tio->bo", block, taps) + self.compress.bias[0, 0]

    def start(self, batch: int = 1) -> CompressiveState:
        """No tokens yet."""
        none = self.to_r.weight.new_zeros(batch, self.frame.kv_heads, 0, self.frame.head_dim)
        x = self.to_r.weight.new_zeros(batch, 0, self.frame.dim)
        return CompressiveState(k=none, v=none, x=x, slots_k=none, slots_v=none)

    def _step_in_segment(
        self, x: Tensor, state: CompressiveState
    ) -> tuple[Tensor, CompressiveState]:
        q, k, v = self.heads(x)
        k, v = torch.cat((state.k, k), 2), torch.cat((state.v, v), 2)  # (b, g, t, d)
        inputs, n = torch.cat((state.x, x), 1), x.shape[1]
        keys, values = torch.cat((state.slots_k, k), 2), torch.cat((state.slots_v, v), 2)
        m, position = keys.shape[2], state.position + n
        mask = torch.ones(n, m, dtype=torch.bool, device=x.device).tril(m - n)
        y = self.project.out(self.attend(q, keys, values, mask))
        slots_k, slots_v = state.slots_k, state.slots_v
        gone = inputs.shape[1] - self._kept(position)
        if gone:
            short = self.slots(inputs[:, :gone])
            first = max(0, slots_k.shape[2] + short.shape[1] - self.config.compressed)
            slots_k = torch.cat((slots_k, self.project.k(short)), 2)[:, :, first:].clone()
            slots_v = torch.cat((slots_v, self.project.v(short)), 2)[:, :, first:].clone()
            k, v = k[:, :, gone:].clone(), v[:, :, gone:].clone()
            inputs = inputs[:, gone:].clone()
        return y, CompressiveState(
            position=position, k=k, v=v, x=inputs, slots_k=slots_k, slots_v=slots_v
        )

    def state_size(self, tokens: int) -> int:
        """Key, value and input of each stored token, key and value of each slot."""
        kept = self._kept(tokens)
        slots = min(self.config.compressed, (tokens - kept) // self.config.ratio)
        each = 2 * self.frame.kv_heads * self.frame.head_dim
        return each * (kept + slots) + self.frame.dim * kept
