"""Twins that break what surrounds the numbers: seeds, graphs, settings, refusals."""

from dataclasses import dataclass

import torch
from tiny import TWINS, Tiny, TinyAttention, TinyState
from torch import nn

from weft.layers.positions import PositionScheme

# Modules.


class PositionsIgnored(TinyAttention):
    def __init__(self, config, frame):
        super().__init__(config, frame)
        self.positions = PositionScheme()


class UnseededPattern(TinyAttention):
    """Drawn when built, and neither seeded by the frame nor stored."""

    def __init__(self, config, frame):
        super().__init__(config, frame)
        self.scale = 1 + torch.rand(()).item()

    def attention(self, q, k, v, valid, crossing):
        return super().attention(q, k * self.scale, v, valid, crossing)


class DrawsEachTime(TinyAttention):
    def attention(self, q, k, v, valid, crossing):
        return super().attention(q, k + 1e-3 * torch.randn_like(k), v, valid, crossing)


class DropsInEval(TinyAttention):
    def normalise(self, scores, mask):
        return nn.functional.dropout(super().normalise(scores, mask), self.frame.dropout)


class CommentsWrongly(TinyAttention):
    def attention(self, q, k, v, valid, crossing):
        y = super().attention(q, k, v, valid, crossing)  # (b, n, c)
        return y


class BreaksGraph(TinyAttention):
    def attention(self, q, k, v, valid, crossing):
        if q.sum().item() > 1e9:
            q = q * 2
        return super().attention(q, k, v, valid, crossing)


class AcceptsContext(TinyAttention):
    crosses = False

    def _check_context(self, x, context):
        pass


class RefusesVaguely(TinyAttention):
    crosses = False

    def _check_context(self, x, context):
        raise ValueError("not possible")


class StartsBidirectional(TinyAttention):
    def start(self, batch=1):
        return TinyState()


class IndexErrorBeyondLength(TinyAttention):
    def attention(self, q, k, v, valid, crossing):
        table = torch.zeros(self.frame.length or 1, device=q.device)
        return (
            super().attention(q, k, v, valid, crossing) + table[torch.arange(q.shape[2])][:, None]
        )


# Configs that do not survive being written down.


@TWINS.register("keeps_list")
@dataclass(frozen=True, kw_only=True)
class KeepsList(Tiny):
    """A list reads back as a tuple."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "window", [self.window])


@TWINS.register("leaves_out_gain")
@dataclass(frozen=True, kw_only=True)
class LeavesOutGain(Tiny):
    """The string does not tell all."""


LeavesOutGain.__str__ = lambda self: f"leaves_out_gain(window={self.window})"


@TWINS.register("changes_gain")
@dataclass(frozen=True, kw_only=True)
class ChangesGain(Tiny):
    """What is stored is not what was given, so reading it back changes it again."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "gain", self.gain + 1)
