"""Many feed-forwards of one shape, each for the tokens routed to it.

    y_t = Σ_k gate_tk · E_{choice_tk}(x_t),    E_i(x) = act(x W1_i + b1_i) W2_i + b2_i   (or a gate)

With a capacity the slots of all experts are one tensor (e, capacity, c) and each matrix is one
batched product; a pair without a slot adds exactly 0. Without a capacity rows are sorted by expert
and each matrix is one grouped product (kernels/experts/products.py). There is no loop over experts
on a GPU.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.feedforward.activations import GATES, activation_of
from weft.kernels.autocast import product_dtype
from weft.kernels.experts.dispatch import ExpertSlots, assign, combine, spread
from weft.kernels.experts.products import ragged_matmul


class ExpertLinear(nn.Module):
    """A linear map per expert: weight (e, inputs, outputs), initialised like torch.nn.Linear."""

    def __init__(self, experts: int, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, inputs, outputs))
        self.bias = nn.Parameter(torch.empty(experts, outputs)) if bias else None
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(inputs**-0.5), inputs**-0.5)

    def forward(self, x: Tensor, ends: Tensor | None) -> Tensor:
        """(e, s, inputs) -> (e, s, outputs); sorted rows (s, inputs) where `ends` (e,) is given."""
        weight = self.weight.to(x.dtype)
        if ends is None:
            if self.bias is None:
                return torch.bmm(x, weight)
            return torch.baddbmm(self.bias[:, None].to(x.dtype), x, weight)
        y = ragged_matmul(x, weight, ends)
        if self.bias is None:
            return y
        row = torch.arange(len(x), device=x.device, dtype=ends.dtype)
        expert = torch.searchsorted(ends, row, right=True).clamp(max=len(ends) - 1)
        return y + F.embedding(expert, self.bias).to(x.dtype)


class Experts(nn.Module):
    """The experts of one layer."""

    elsewhere = False  # whether other devices hold some of them

    def __init__(
        self, count: int, dim: int, hidden: int, activation: str, dropout: float, bias: bool
    ) -> None:
        super().__init__()
        self.count = count
        self.activation = activation_of(activation)
        self.to_hidden = ExpertLinear(count, dim, hidden, bias)
        self.to_gate = ExpertLinear(count, dim, hidden, bias) if activation in GATES else None
        self.dropout = nn.Dropout(dropout)
        self.to_out = ExpertLinear(count, hidden, dim, bias)

    def forward(
        self,
        x: Tensor,
        choice: Tensor,
        gate: Tensor,
        *,
        complete: bool,
        capacity: int | None = None,
        group: int | None = None,
    ) -> Tensor:
        """Tokens (t, c), experts (t, k), their weights (t, k) -> (t, c).

        A choice of `count` means no expert; `complete` promises that there is none. With a capacity
        each expert takes at most that many pairs, of every `group` consecutive tokens if given.
        """
        x = x.to(product_dtype(x))
        bucket, groups = self._buckets(choice, group if capacity is not None else None)
        places = assign(bucket, self.count * groups, capacity, complete=complete)
        return combine(self.compute(spread(x, places), places), gate, places)

    def compute(self, x: Tensor, places: ExpertSlots) -> Tensor:
        """Every slot (s, c) through the expert it belongs to."""
        if places.ends is None:
            x = x.unflatten(0, (self.count, -1))  # (e, s, c)
        hidden = self.to_hidden(x, places.ends)
        if self.to_gate is None:
            hidden = self.activation(hidden)
        else:
            hidden = self.activation(self.to_gate(x, places.ends)) * hidden
        y = self.to_out(self.dropout(hidden), places.ends)
        return y.flatten(0, 1) if places.ends is None else y

    def _buckets(self, choice: Tensor, group: int | None) -> tuple[Tensor, int]:
        """The bucket of each pair, choice by choice (k·t,), expert first; and the groups."""
        if group is None or group >= len(choice):
            return choice.t().flatten(), 1
        number = torch.arange(len(choice), device=choice.device) // group
        groups = -(-len(choice) // group)
        bucket = choice * groups + number[:, None] * (choice < self.count)
        return bucket.t().flatten(), groups
