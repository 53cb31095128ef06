"""Longformer: a sliding window for every token, and a few global tokens that read and are read.

    i not global   out_i over the window and the global tokens, by q, k, v
    i global       out_i over all tokens, by projections of their own: q_g, k_g, v_g

A window may be dilated per head (gaps let some heads look far) and differ per layer. `window` is
weft's: |i − j| < window. The paper's window of 512, both sides together, is window=257 here.
Time O(n (window + globals) c), memory O(n window). Causal, the first tokens are read by all and
decoding keeps (window − 1) · dilation + globals keys.

Paper: Beltagy et al. 2020, section 3, https://arxiv.org/abs/2004.05150
Differs from it: the causal mode reads the global tokens by the local projections, since no token
reads ahead there; any length, no padding to a multiple of the window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from weft.errors import Unsupported, WeftError
from weft.kernels.attend.api import attend
from weft.kernels.attend.merge import merge
from weft.kernels.dense.reference import dense_attention
from weft.layers.marks import Mark
from weft.layers.padding import take, zero_padding
from weft.layers.projections.dense import join_heads, side_by_side, split_heads
from weft.mixers.base import MIXERS, Frame, Mixer, Traits
from weft.mixers.base.contract import check_plain_heads
from weft.mixers.base.under_pattern import EVERY_KEY, PatternAttention, pattern_traits
from weft.patterns import Causal, Dilated, Keys, Pattern, PerHead, Sliding
from weft.patterns.derive import mask


@MIXERS.register("longformer")
@dataclass(frozen=True, kw_only=True)
class Longformer:
    """Local attention with global tokens."""

    window: int | tuple[int, ...] = 257  # reach, itself included; several: one per layer
    dilation: int | tuple[int, ...] = 1  # step within the window; several: shared out to the heads
    global_first: int = 1  # leading tokens that are global
    global_projections: bool = True  # global tokens attend by projections of their own

    traits: ClassVar[Traits] = pattern_traits(
        "Beltagy et al. 2020, https://arxiv.org/abs/2004.05150",
        time="n (w + globals) c",
        memory="n w",
        context_parallel="keys within the window at each border, global ones to all; global "
        "rows by log-sum-exp",
        state="2·g·d·(reach + global_first)",
        pair="a window pairs",
        marks=(Mark("is_global", "boolean", "True where a token is global", causal=False),),
    )

    def __post_init__(self) -> None:
        if self.global_first < 0:
            raise WeftError(f"global_first counts tokens; got global_first={self.global_first}")
        for layer in range(len(self.window) if isinstance(self.window, tuple) else 1):
            self.local(layer)

    def local(self, layer: int) -> Pattern:
        """The window of one layer, dilated per head."""
        window = self.window
        if isinstance(window, tuple):
            if layer >= len(window):
                raise WeftError(
                    f"longformer has windows for {len(window)} layers; got layer {layer}: "
                    "give one window, or one per layer"
                )
            window = window[layer]
        steps = self.dilation if isinstance(self.dilation, tuple) else (self.dilation,)
        each = [Sliding(window) if step == 1 else Dilated(window, step) for step in steps]
        return each[0] if len(each) == 1 else PerHead(*each)

    def pattern(self, frame: Frame) -> Pattern:
        """What the local projections read: the window and the leading global tokens."""
        seen = self.local(frame.layer)
        if self.global_first:
            seen = _with_keys(seen, Keys(first=self.global_first))
        return _causal(seen) if frame.causal else seen

    def build(self, frame: Frame) -> LongformerAttention:
        return LongformerAttention(self, frame)

    @classmethod
    def variants(cls) -> tuple[Longformer, ...]:
        """Settings that the contract suite tests."""
        return (
            cls(window=9, global_first=2),
            cls(window=(9,), dilation=(1, 3), global_first=0, global_projections=False),
            cls(window=12, global_first=1, global_projections=False),
        )


def _with_keys(seen: Pattern, keys: Pattern) -> Pattern:
    if isinstance(seen, PerHead):
        return PerHead(*(each | keys for each in seen.patterns))
    return seen | keys


def _causal(seen: Pattern) -> Pattern:
    if isinstance(seen, PerHead):
        return PerHead(*(Causal() & each for each in seen.patterns))
    return Causal() & seen


class LongformerAttention(PatternAttention):
    """Window and global attention.

    `is_global` (b, n) names global tokens freely, row by row; by default the leading ones.
    """

    def __init__(self, config: Longformer, frame: Frame) -> None:
        super().__init__(config, frame, config.pattern(frame))
        self.local = config.local(frame.layer)
        self.own_projections = config.global_projections and not frame.causal
        if self.own_projections:
            check_plain_heads(config, frame)
            inner, kv = frame.heads * frame.head_dim, frame.kv_heads * frame.head_dim
            self.to_q_global = nn.Linear(frame.dim, inner, bias=frame.bias)
            self.to_k_global = nn.Linear(frame.dim, kv, bias=frame.bias)
            self.to_v_global = nn.Linear(frame.dim, kv, bias=frame.bias)

    def mark_registers(self, name: str, mark: Tensor, count: int) -> Tensor:
        """Registers are as global as they are without marks: the leading ones."""
        leading = torch.arange(count, device=mark.device) < self.config.global_first  # (count,)
        return leading.expand(len(mark), -1)

    def mix(
        self,
        x: Tensor,
        valid: Tensor | None,
        context: Tensor | None,
        context_valid: Tensor | None,
        is_global: Tensor | None = None,
    ) -> Tensor:
        """Local rows first, then the global rows replace theirs."""
        if self.frame.causal:
            if is_global is not None:
                raise WeftError("a causal longformer takes its global tokens from global_first")
            return super().mix(x, valid, context, context_valid)
        if is_global is None:
            return self._leading(x, valid)
        q, k, v = self.heads(x)
        chosen, real = _listed(is_global if valid is None else is_global & valid)
        out = self._window_and_globals(q, k, v, valid, is_global, chosen, real)
        if chosen.shape[1]:
            q, k, v = self._global_heads(x, q, k, v, chosen)
            rows = attend(q, k, v, EVERY_KEY, valid=valid, dropout=self.dropout)
            out = _replace(out, rows, chosen, real)
        return self.project.out(out)

    def letters(self, tokens: int) -> dict[str, int]:
        """How far back the widest head of this layer reads."""
        window, steps = self.config.window, self.config.dilation
        window = window[self.frame.layer] if isinstance(window, tuple) else window
        return {"reach": (window - 1) * (max(steps) if isinstance(steps, tuple) else steps)}

    def first_rows(self, x: Tensor, count: int, valid: Tensor | None = None) -> Tensor:
        """Leading tokens that are global read everything; without any, it is the window alone."""
        if self.frame.causal or not self.config.global_first:
            return super().first_rows(x, count, valid)
        if count > self.config.global_first:
            return Mixer.first_rows(self, x, count, valid)
        x = zero_padding(x, valid)
        heads = (
            self._global_projections(x, count)
            if self.own_projections
            else self.first_rows_heads(x, count)
        )
        return self.project.out(attend(*heads, EVERY_KEY, valid=valid, dropout=self.dropout))

    def _leading(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """The leading tokens are global: slices instead of gathers."""
        count = min(self.config.global_first, x.shape[1])
        q, k, v = self.heads(x)
        out = super().attention(q, k, v, valid, crossing=False)
        if not count:
            return self.project.out(out)
        q, k, v = (
            self._global_projections(x, count) if self.own_projections else (q[:, :, :count], k, v)
        )
        rows = attend(q, k, v, EVERY_KEY, valid=valid, dropout=self.dropout)
        joined = torch.cat((join_heads(rows), join_heads(out[:, :, count:])), dim=1)  # (b, n, c)
        return self.project.to_out(joined)

    def _global_projections(self, x: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """By the projections of their own: q of the leading tokens, k and v of all."""
        index = torch.arange(x.shape[1], device=x.device)
        q = split_heads(self.to_q_global(x[:, :count]), self.frame.heads)
        k, v = side_by_side(x, (self.to_k_global, self.to_v_global))
        k, v = (split_heads(y, self.frame.kv_heads) for y in (k, v))
        return self.positions.rotate(q, index[:count]), self.positions.rotate(k, index), v

    def _window_and_globals(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        valid: Tensor | None,
        is_global: Tensor,
        chosen: Tensor,
        real: Tensor,
    ) -> Tensor:
        """The window without its global keys, merged with the global keys: each counts once."""
        near = ~is_global if valid is None else valid & ~is_global
        bias = self.positions.at if self.positions.biased else None
        settings: dict[str, Any] = {"bias": bias, "dropout": self.dropout}
        parts = [attend(q, k, v, self.local, valid=near, return_lse=True, **settings)]
        if chosen.shape[1]:
            keys, values = (_take_heads(y, chosen) for y in (k, v))
            seen, added = real[:, None, None, :], self._bias_of(q, chosen)
            parts.append(
                dense_attention(q, keys, values, mask=seen, bias=added, dropout=self.dropout)
            )
        return merge(parts)[0]

    def _bias_of(self, q: Tensor, chosen: Tensor) -> Tensor | None:
        """What the positions add to the scores of the global keys: (b, h, n, globals)."""
        if not self.positions.biased:
            return None
        head = torch.arange(q.shape[1], device=q.device)[:, None, None]
        i = torch.arange(q.shape[2], device=q.device)[:, None]
        return self.positions.at(head, i, chosen[:, None, None, :])

    def _global_heads(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, chosen: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q of the global tokens (b, h, globals, d), and k and v of all."""
        if not self.own_projections:
            return _take_heads(q, chosen), k, v
        q = split_heads(self.to_q_global(take(x, chosen)), self.frame.heads)
        k = split_heads(self.to_k_global(x), self.frame.kv_heads)
        v = split_heads(self.to_v_global(x), self.frame.kv_heads)
        k = self.positions.rotate(k, torch.arange(x.shape[1], device=x.device))
        rows = [self.positions.rotate(q[a : a + 1], chosen[a]) for a in range(len(q))]
        return torch.cat(rows), k, v

    def reference(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
        is_global: Tensor | None = None,
    ) -> Tensor:
        """Dense masks for local rows; global rows one by one."""
        if self.frame.causal:
            return super().reference(x, valid, context, context_valid)
        b, n, _ = x.shape
        real = x.new_ones(b, n, dtype=torch.bool) if valid is None else valid
        leading = torch.arange(n, device=x.device) < self.config.global_first  # (n,)
        marked = leading.expand(b, n) if is_global is None else is_global  # (b, n)
        q, k, v = self.heads(zero_padding(x, valid))
        seen = mask(self.local, n, heads=self.frame.heads, device=x.device)  # (h, n, n)
        seen = (seen | marked[:, None, None, :]) & real[:, None, None, :]  # (b, h, n, n)
        out = self.plain_scores(q, k, v, seen)
        every = torch.arange(n, device=x.device).expand(b, n)
        q, k, v = self._global_heads(x, q, k, v, every)
        global_rows = dense_attention(q, k, v, mask=real[:, None, None, :])[0]
        return self.project.out(torch.where(marked[:, None, :, None], global_rows, out))


def _listed(is_global: Tensor) -> tuple[Tensor, Tensor]:
    """(b, n) booleans -> the global positions (b, most), and which of them are real."""
    if is_global.is_cuda and torch.cuda.is_current_stream_capturing():
        raise Unsupported(
            "longformer counts the tokens that is_global marks in each batch, and a recorded "
            "update cannot; set graph=false, or mark none and use global_first"
        )
    most = int(is_global.sum(1).max())
    order = (~is_global).to(torch.uint8).argsort(dim=1, stable=True)[:, :most]
    return order, is_global.gather(1, order)


def _take_heads(x: Tensor, chosen: Tensor) -> Tensor:
    """(b, h, n, d) at positions (b, m) -> (b, h, m, d)."""
    index = chosen[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])
    return x.gather(2, index)


def _replace(out: Tensor, rows: Tensor, chosen: Tensor, real: Tensor | None) -> Tensor:
    """Put rows (b, h, m, d) at positions (b, m) of out (b, h, n, d), where they are real."""
    index = chosen[:, None, :, None].expand_as(rows)
    if real is not None:
        rows = torch.where(real[:, None, :, None], rows, out.gather(2, index))
    return out.scatter(2, index, rows)
