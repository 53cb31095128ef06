"""Twins whose decoding differs from forward, or whose state is larger than said."""

from dataclasses import dataclass

import torch
from tiny import TinyAttention, TinyState
from torch import Tensor

from weft.mixers.base import State


class PositionsStartAgain(TinyAttention):
    def heads(self, x, context=None, start=0):
        return super().heads(x, context, 0)


class StateForgets(TinyAttention):
    def recent(self, x):
        kept = super().recent(x)
        return torch.cat((torch.zeros_like(kept[:, :, :1]), kept[:, :, 1:]), dim=2)


class StateOnModule(TinyAttention):
    def start(self, batch=1):
        self.kept = super().start(batch)
        return self.kept

    def step(self, x, state):
        rows = state.select(torch.arange(len(x)) % len(self.kept.keys))
        same = len(self.kept.keys) == len(x) and self.kept.position == state.position
        y, self.kept = super().step(x, self.kept if same else rows)
        return y, self.kept


class PositionNotCounted(TinyAttention):
    def step(self, x, state):
        y, after = super().step(x, state)
        return y, TinyState(position=0, keys=after.keys, values=after.values)


class SelectsHalf(TinyAttention):
    """The values hide in a list, so that `select` does not move them."""

    def start(self, batch=1):
        state = super().start(batch)
        return HiddenValues(keys=state.keys, hidden=[state.values])

    def step(self, x, state):
        values = state.hidden[0][torch.arange(len(x)) % len(state.hidden[0])]
        y, after = super().step(x, TinyState(state.position, state.keys, values))
        return y, HiddenValues(position=after.position, keys=after.keys, hidden=[after.values])


@dataclass
class HiddenValues(State):
    keys: Tensor = None
    hidden: list = None


class StepsInFloat32(TinyAttention):
    def step(self, x, state):
        y, state = super().step(x, state)
        return y.to(torch.promote_types(y.dtype, torch.float32)), state


class StateTooLarge(TinyAttention):
    def recent(self, x):
        return x[:, :, -self.config.window - 1 :].clone()


class StateHidesMore(TinyAttention):
    """Shows the last w tokens of a storage that keeps all."""

    def recent(self, x):
        room = x.new_zeros(*x.shape[:2], 100, x.shape[3])
        room[:, :, : min(x.shape[2], self.config.window)] = super().recent(x)
        return room[:, :, : min(x.shape[2], self.config.window)]


# What the traits say of the state.


class FormulaTooSmall(TinyAttention):
    state_formula = "g·d·window"


class FormulaTooLarge(TinyAttention):
    state_formula = "4·g·d·window"


class FormulaGrows(TinyAttention):
    """A bound, but of a state that would keep all tokens."""

    state_formula = "2·g·d·max(n, window)"


class FormulaInProse(TinyAttention):
    state_formula = "2 g d (the last tokens)"


class FormulaOfNothing(TinyAttention):
    state_formula = "2·g·d·w"
