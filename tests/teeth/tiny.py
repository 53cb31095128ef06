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

from weft.kernels.attend.bias import dense_bias
from weft.kernels.dense.reference import expand_heads
from weft.layers.marks import Mark
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
            state=module.state_formula,
            causal=True,
            bidirectional=True,
            cross=module.crosses,
            marks=(Mark("loud", "boolean", "True where a token counts twice"),),
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
    state_formula = "2·g·d·window"
    queries_apart = True
    modules: ClassVar[dict[str, type[TinyAttention]]] = {}

    def __init_subclass__(cls) -> None:
        TinyAttention.modules[cls.__name__] = cls

    def __init__(self, config: Tiny, frame: Frame) -> None:
        super().__init__(config, frame)
        self.gain = nn.Parameter(torch.full((frame.heads,), config.gain))

    def sees(self, i: Tensor, j: Tensor) -> Tensor:
        w = self.config.window
        return (i >= j) & (i - j < w) if self.frame.causal else (i - j).abs() <= w // 2

    def mix(self, x, valid, context, context_valid, loud=None):
        return super().mix(louder(x, loud), valid, context, context_valid)

    def reference(self, x, valid=None, context=None, context_valid=None, loud=None):
        x = x if loud is None else torch.where(loud[..., None], 2 * x, x)
        return super().reference(x, valid, context, context_valid)

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
        """For each token the list of tokens it reads, and exp(score) / sum over that list."""
        n, m, w = q.shape[2], k.shape[2], self.config.window
        offsets = range(1 - w, 1) if self.frame.causal else range(-(w // 2), w // 2 + 1)
        i = torch.arange(n, device=q.device)[:, None]
        j = torch.arange(m, device=q.device).expand(n, m)
        if not crossing:
            j = i + torch.tensor(list(offsets), device=q.device)
        real = (j >= 0) & (j < m)
        j = j.clamp(0, m - 1)
        real = real if valid is None else real & valid[:, j]
        out = [self.plain_head(a, q, k, v, i, j, real, crossing) for a in range(q.shape[1])]
        return torch.stack(out, dim=1)

    def plain_head(self, a, q, k, v, i, j, real, crossing):
        own = a // (q.shape[1] // k.shape[1])
        scores = torch.einsum("bnd,bnjd->bnj", q[:, a], k[:, own][:, j]) / q.shape[-1] ** 0.5
        if self.positions.biased and not crossing:
            scores = scores + self.positions.at(torch.tensor(a), i, j)
        nothing = ~real.any(-1, keepdim=True)  # such a query reads 0
        weights = scores.masked_fill(~(real | nothing), -torch.inf).softmax(-1) * real
        read = torch.einsum("bnj,bnje->bne", weights.to(v.dtype), v[:, own][:, j])
        return read * self.gain[a]

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


def louder(x: Tensor, loud: Tensor | None) -> Tensor:
    return x if loud is None else x + x * loud[..., None]
