"""Twins that read what they may not: the future, padding, other rows, earlier batches."""

import torch
from tiny import TinyAttention

# The future.


class LeaksOneToken(TinyAttention):
    def sees(self, i, j):
        return super().sees(i, j) | (j == i + 1)


class LeaksThroughMean(TinyAttention):
    def attention(self, q, k, v, valid, crossing):
        return super().attention(q, k, v + 1e-6 * v.mean(dim=2, keepdim=True), valid, crossing)


class LeaksByRounding(TinyAttention):
    """Subtracts the largest score of the whole sequence: the future decides how the past rounds."""

    def normalise(self, scores, mask):
        weights = (scores - scores.amax((-1, -2), keepdim=True)).exp() * mask
        return weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)


class WindowGrowsWithLength(TinyAttention):
    def attention(self, q, k, v, valid, crossing):
        self.wide = q.shape[2] > 40
        return super().attention(q, k, v, valid, crossing)

    def sees(self, i, j):
        near = super().sees(i, j)
        return near | (i - j == self.config.window) if getattr(self, "wide", False) else near


class LeaksWhenLong(TinyAttention):
    """The kernel for long sequences in single precision lets a little of the future in."""

    def attention(self, q, k, v, valid, crossing):
        if q.shape[2] > 512 and q.dtype == torch.float32:
            v = v + 1e-6 * v.mean(dim=2, keepdim=True)
        return super().attention(q, k, v, valid, crossing)


# Padding.


class PaddingForgotten(TinyAttention):
    def read(self, q, k, v, i, j, valid, crossing=False):
        return super().read(q, k, v, i, j, None, crossing)


class PaddingForgottenWhenLong(TinyAttention):
    def read(self, q, k, v, i, j, valid, crossing=False):
        return super().read(q, k, v, i, j, None if len(i) > 512 else valid, crossing)

    def plain_attention(self, q, k, v, valid, crossing):
        return super().attention(q, k, v, valid, crossing)


class PaddingCountsAsDistance(TinyAttention):
    def forward(self, x, *, valid=None, **options):
        y = self.mix(x, valid, None, None)
        return y if valid is None else y.masked_fill(~valid[..., None], 0.0)


class PaddingSpeaks(TinyAttention):
    def forward(self, x, *, valid=None, **options):
        y = super().forward(x, valid=valid, **options)
        return y if valid is None else y.masked_fill(~valid[..., None], 1e-3)


class MeanOverPadding(TinyAttention):
    def attention(self, q, k, v, valid, crossing):
        return super().attention(q, k, v - v.mean(2, keepdim=True), valid, crossing)


# Other rows, and earlier batches.


class BatchNormalised(TinyAttention):
    def attention(self, q, k, v, valid, crossing):
        return super().attention(q, k / (1 + k.square().mean()), v, valid, crossing)


class RowsNumbered(TinyAttention):
    def attention(self, q, k, v, valid, crossing):
        rows = 1 + 0.01 * torch.arange(len(q), device=q.device, dtype=q.dtype)
        return super().attention(q, k, v, valid, crossing) * rows[:, None, None, None]


class SwitchesAfterShortBatch(TinyAttention):
    """From the first short batch on, attention is full."""

    short = False

    def attention(self, q, k, v, valid, crossing):
        self.short |= q.shape[2] < 8
        return super().attention(q, k, v, valid, crossing)

    def sees(self, i, j):
        return torch.ones_like(i * j, dtype=torch.bool) if self.short else super().sees(i, j)


class FirstLengthDecides(TinyAttention):
    first = None

    def attention(self, q, k, v, valid, crossing):
        self.first = self.first or q.shape[2]
        return super().attention(q, k, v, valid, crossing)

    def sees(self, i, j):
        return super().sees(i, j) & ((i - j).abs() < self.first // 2)


class CountsCalls(TinyAttention):
    calls = 0

    def attention(self, q, k, v, valid, crossing):
        self.calls += 1
        return super().attention(q, k, v, valid, crossing) * (1 + 1e-6 * self.calls)


class PaddingTimesZero(TinyAttention):
    """A weight of 0 hides numbers, but neither NaN nor infinity."""

    def forward(self, x, *, valid=None, **options):
        y = super().forward(x, valid=valid, **options)
        if valid is None:
            return y
        return y + 0 * x.masked_fill(valid[..., None], 0.0).sum((1, 2), keepdim=True)


class RowsTimesZero(TinyAttention):
    def attention(self, q, k, v, valid, crossing):
        return super().attention(q, k, v, valid, crossing) + 0 * v.sum()


class ContextTimesZero(TinyAttention):
    def forward(self, x, *, context=None, context_valid=None, **options):
        given = {"context": context, "context_valid": context_valid, **options}
        y = super().forward(x, **given)
        return y if context_valid is None else y + 0 * context.sum((1, 2), keepdim=True)
