"""Twins that are not the function of the equation."""

import torch
from tiny import TinyAttention
from torch import nn

from weft.kernels.dense.reference import expand_heads

# Values: not the function of the reference.


class OneTooMany(TinyAttention):
    def sees(self, i, j):
        w = self.config.window + 1
        return (i >= j) & (i - j < w) if self.frame.causal else (i - j).abs() <= w // 2


class OneTooFew(TinyAttention):
    def sees(self, i, j):
        return super().sees(i, j) & (i - j < self.config.window // 2)


class CopiesValues(TinyAttention):
    def read(self, q, k, v, i, j, valid, crossing=False):
        return expand_heads(v, q.shape[1])


class TilesHeads(TinyAttention):
    """Query head a reads key head a mod g."""

    def read(self, q, k, v, i, j, valid, crossing=False):
        times = q.shape[1] // k.shape[1]
        k, v = k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1)
        return super().read(q, k, v, i, j, valid, crossing)


class WrongBeyond128(TinyAttention):
    def attention(self, q, k, v, valid, crossing):
        out = super().attention(q, k, v, valid, crossing)
        return torch.cat((out[:, :, :128], out[:, :, 128:] * 1.01), dim=2)


class WrongWhenLong(TinyAttention):
    def attention(self, q, k, v, valid, crossing):
        return super().attention(q, k, v, valid, crossing) * (1.01 if q.shape[2] > 512 else 1)


class SinglePrecision(TinyAttention):
    def normalise(self, scores, mask):
        return super().normalise(scores.float(), mask)


class BiasBackwards(TinyAttention):
    """Only a position scheme that knows left from right can tell."""

    def bias(self, i, j):
        return super().bias(j, i)


class CoarseInHalf(TinyAttention):
    """Weights rounded to 1 / 16 outside fp64: wrong by far more than rounding."""

    def normalise(self, scores, mask):
        weights = super().normalise(scores, mask)
        return weights if scores.dtype == torch.float64 else (weights * 16).round() / 16


# Gradients.


class DetachedKeys(TinyAttention):
    def attention(self, q, k, v, valid, crossing):
        return super().attention(q, k.detach(), v, valid, crossing)


class DetachedWhenLong(TinyAttention):
    def attention(self, q, k, v, valid, crossing):
        return super().attention(q, k.detach() if k.shape[2] > 512 else k, v, valid, crossing)


class UnusedParameter(TinyAttention):
    def __init__(self, config, frame):
        super().__init__(config, frame)
        self.spare = nn.Parameter(torch.zeros(3))


# Lengths.


class MultiplesOfFour(TinyAttention):
    def attention(self, q, k, v, valid, crossing):
        n = q.shape[2]
        return (
            super()
            .attention(q, k, v, valid, crossing)
            .view(*q.shape[:2], n // 4, 4, -1)
            .flatten(2, 3)
        )


class NeedsTwoTokens(TinyAttention):
    def attention(self, q, k, v, valid, crossing):
        spread = (k - k.mean(2, keepdim=True)).square().mean(2, keepdim=True).sqrt()
        return super().attention(q, k / spread, v, valid, crossing)


class TableOf512(TinyAttention):
    def attention(self, q, k, v, valid, crossing):
        table = torch.zeros(512, device=q.device)
        return (
            super().attention(q, k, v, valid, crossing) + table[torch.arange(q.shape[2])][:, None]
        )


class CropsToEven(TinyAttention):
    def mix(self, x, valid, context, context_valid):
        return super().mix(x, valid, context, context_valid)[:, : max(1, x.shape[1] // 2 * 2)]


# Half precision.


class ExpOverflows(TinyAttention):
    def normalise(self, scores, mask):
        weights = (scores * 4).to(self.gain.dtype).exp() * mask
        return weights / weights.sum(-1, keepdim=True).clamp(min=1e-4)


class NanOnEmptyRows(TinyAttention):
    def normalise(self, scores, mask):
        return scores.masked_fill(~mask, float("-inf")).softmax(-1)


class ReturnsFloat32(TinyAttention):
    def forward(self, x, **options):
        return super().forward(x, **options).float()


# Cross-attention.


class ContextIgnored(TinyAttention):
    def heads(self, x, context=None, start=0):
        return super().heads(x, None if context is None else x, start)

    def reference(self, x, valid=None, context=None, context_valid=None):
        q, _, _ = super().heads(x, context)
        _, k, v = super().heads(x if context is None else context)
        return self.project.out(self.plain_attention(q, k, v, context_valid, context is not None))


class ContextPaddingForgotten(TinyAttention):
    def read(self, q, k, v, i, j, valid, crossing=False):
        return super().read(q, k, v, i, j, None if crossing else valid, crossing)


class NanOnEmptyContext(TinyAttention):
    def normalise(self, scores, mask):
        empty = ~mask.any(-1, keepdim=True)
        return super().normalise(scores, mask) / (~empty).to(scores.dtype)


# The first rows alone.


class FirstRowsReadThemselves(TinyAttention):
    def first_rows(self, x, count, valid=None):
        return self(x[:, :count], valid=None if valid is None else valid[:, :count])


class FirstRowsForgetPadding(TinyAttention):
    def first_rows(self, x, count, valid=None):
        return super().first_rows(x, count)


class AlignedForgetsPadding(TinyAttention):
    def forward(self, x, *, valid=None, aligned=False, **options):
        return super().forward(x, valid=None if aligned else valid, **options)


# Large inputs and parameters.


class ReferenceRaisesInHalf(TinyAttention):
    """A bias widens the scores, which then do not fit the values."""

    def plain_head(self, a, q, k, v, *rest):
        if self.positions.biased and v.dtype != torch.float64:
            raise RuntimeError("expected m1 and m2 to have the same dtype")
        return super().plain_head(a, q, k, v, *rest)


def shifted_by_hidden_keys(scores, mask):
    """Finite at any size, and 0 where a key that is not read is much louder."""
    weights = (scores - scores.amax(-1, keepdim=True)).exp() * mask
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)


class ShiftedByHiddenKeys(TinyAttention):
    def normalise(self, scores, mask):
        return shifted_by_hidden_keys(scores, mask)


class StepsShiftedByHiddenKeys(TinyAttention):
    def normalise(self, scores, mask):
        if scores.shape[-1] == scores.shape[-2]:
            return super().normalise(scores, mask)
        return shifted_by_hidden_keys(scores, mask)


class ScoresClipped(TinyAttention):
    """Inputs alone do not reach the bound."""

    def normalise(self, scores, mask):
        return super().normalise(
            scores.clamp(-20, 20) if self.gain.abs().max() > 20 else scores, mask
        )


class FlatWhenLarge(TinyAttention):
    """The values of exp(log softmax) are right, their gradient is cut off."""

    def read(self, q, k, v, i, j, valid, crossing=False):
        large = q.detach().abs().max() > 50
        return super().read(q, k, v.detach() if large else v, i, j, valid, crossing)
