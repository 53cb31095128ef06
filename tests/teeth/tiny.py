"""A tiny mechanism that keeps the whole contract: the sound twin of all the broken ones.

Attention over a window of w tokens, computed as a dense masked product; its state is the last w
keys and values. A broken twin subclasses it, overrides as little as possible, and is chosen by
its name: `Tiny(module="OneTooMany")`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from weft.kernels.bias import dense_bias
from weft.kernels.dense import expand_heads
from weft.mixers.base import AttentionMixer, Frame, State, Traits
from weft.registry import Registry

TWINS = Registry("twin")


@TWINS.register("tiny")
@dataclass(frozen=True, kw_only=True)
class Tiny:
    """Each token reads the w tokens ending at itself, or within w / 2 both ways."""

    window: int = 5
    gain: float = 1.0
    module: str = "TinyAttention"

    @property
    def traits(self) -> Traits:
        module = TinyAttention.modules[self.module]
        return Traits(
            family="fixed pattern",
            paper="none",
            time="n²",
            memory="n²",
            state="2·g·d·w",
            causal=True,
            bidirectional=True,
            cross=module.crosses,
        )

    def build(self, frame: Frame) -> TinyAttention:
        return TinyAttention.modules[self.module](self, frame)


@dataclass
class TinyState(State):
    keys: Tensor = None  # (b, g, t, d) with t at most w
    values: Tensor = None


class TinyAttention(AttentionMixer):
    """softmax over the visible keys, times a learned gain per head."""

    crosses = True
    modules: ClassVar[dict[str, type[TinyAttention]]] = {}

    def __init_subclass__(cls) -> None:
        TinyAttention.modules[cls.__name__] = cls

    def __init__(self, config: Tiny, frame: Frame) -> None:
        super().__init__(config, frame)
        self.gain = nn.Parameter(torch.full((frame.heads,), config.gain))

    def sees(self, i: Tensor, j: Tensor) -> Tensor:
        w = self.config.window
        return (i >= j) & (i - j < w) if self.frame.causal else (i - j).abs() <= w // 2

    def attention(self, q, k, v, valid, crossing):
        i = torch.arange(q.shape[2], device=q.device)
        j = torch.arange(k.shape[2], device=q.device)
        return self.read(q, k, v, i, j, valid, crossing)

    def read(self, q, k, v, i, j, valid, crossing=False):
        i, j = i[:, None], j[None]
        k, v = expand_heads(k, q.shape[1]), expand_heads(v, q.shape[1])
        work = torch.promote_types(q.dtype, torch.float32)
        scores = (q.to(work) @ k.to(work).transpose(-1, -2)) * q.shape[-1] ** -0.5
        if self.positions.biased and not crossing:
            scores = scores + self.bias(i, j).to(work)
        mask = torch.ones_like(i * j, dtype=torch.bool) if crossing else self.sees(i, j)
        mask = mask[None, None]
        if valid is not None:
            mask = mask & valid[:, None, None]
        weights = self.normalise(scores, mask)
        return (weights.to(v.dtype) @ v) * self.gain[:, None, None]

    def bias(self, i: Tensor, j: Tensor) -> Tensor:
        return dense_bias(self.positions.at, self.frame.heads, i, j)

    def normalise(self, scores: Tensor, mask: Tensor) -> Tensor:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        return scores.softmax(-1).masked_fill(~mask, 0.0)

    def plain_attention(self, q, k, v, valid, crossing):
        """Token by token, key by key."""
        m, w = k.shape[2], self.config.window
        rows = []
        for i in range(q.shape[2]):
            low, high = (i - w + 1, i) if self.frame.causal else (i - w // 2, i + w // 2)
            seen = range(m) if crossing else [j for j in range(m) if low <= j <= high]
            at = torch.tensor(list(seen), device=q.device)
            row = self.plain_row(q[:, :, i], k[:, :, at], v[:, :, at], valid, i, at, crossing)
            rows.append(row)
        return torch.stack(rows, dim=2)

    def plain_row(self, q, k, v, valid, i, at, crossing):
        g = k.shape[1]
        heads = []
        for a in range(q.shape[1]):
            own = a // (q.shape[1] // g)
            scores = torch.einsum("bd,bjd->bj", q[:, a], k[:, own]) / q.shape[-1] ** 0.5
            if self.positions.biased and not crossing:
                scores = scores + self.positions.at(torch.tensor(a), torch.tensor(i), at)
            weights = scores.exp()
            if valid is not None:
                weights = weights * valid[:, at]
            total = weights.sum(-1, keepdim=True)
            weights = weights / torch.where(total > 0, total, 1)
            heads.append(torch.einsum("bj,bje->be", weights, v[:, own]) * self.gain[a])
        return torch.stack(heads, dim=1)

    def start(self, batch: int = 1) -> TinyState:
        if not self.frame.causal:
            raise self._cannot_stream()
        like = self.project.to_k.weight
        empty = like.new_empty(batch, self.frame.kv_heads, 0, self.frame.head_dim)
        return TinyState(keys=empty, values=empty)

    def step(self, x: Tensor, state: TinyState) -> tuple[Tensor, TinyState]:
        t, n = state.position, x.shape[1]
        q, k, v = self.heads(x, start=t)
        k, v = torch.cat((state.keys, k), dim=2), torch.cat((state.values, v), dim=2)
        j = torch.arange(t + n - k.shape[2], t + n, device=x.device)
        y = self.project.out(self.read(q, k, v, torch.arange(t, t + n, device=x.device), j, None))
        return y, TinyState(position=t + n, keys=self.recent(k), values=self.recent(v))

    def recent(self, x: Tensor) -> Tensor:
        return x[:, :, -self.config.window :].clone()

    def state_size(self, tokens: int) -> int:
        if not self.frame.causal:
            raise self._cannot_stream()
        return 2 * self.frame.kv_heads * self.frame.head_dim * min(tokens, self.config.window)


TinyAttention.modules["TinyAttention"] = TinyAttention
