"""LSTM: a memory cell with gates, from token to token.

    i, f, g, o = W x_t + b + U h_(t−1) + b'
    c_t = σ(f) c_(t−1) + σ(i) tanh(g),    h_t = σ(o) tanh(c_t)

Both ways, a second one runs from the right (`base/recurrent.py`).
Time O(n c²), one token after another; memory O(n c). Decoding keeps h and c.

Papers: Hochreiter, Schmidhuber 1997, https://doi.org/10.1162/neco.1997.9.8.1735; forget gates: Gers
et al. 2000, https://doi.org/10.1162/089976600300015015
Differs from them: no peepholes; it runs on torch's fused LSTM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.kernels.recurrence.triton import torch_rnn
from weft.mixers.base import MIXERS, Frame, Traits
from weft.mixers.base.recurrent import (
    Memory,
    RecurrentCell,
    RecurrentMixer,
    recurrent_traits,
)


@MIXERS.register("lstm")
@dataclass(frozen=True, kw_only=True)
class LSTM:
    """Long short-term memory."""

    traits: ClassVar[Traits] = recurrent_traits(
        "Hochreiter, Schmidhuber 1997, https://doi.org/10.1162/neco.1997.9.8.1735",
        state="2·c",
        graph="torch's fused one cannot be part of a graph",
    )

    def cell(self, frame: Frame) -> LSTMCell:
        """One direction."""
        return LSTMCell(frame.dim, frame.bias)

    def build(self, frame: Frame) -> RecurrentMixer:
        return RecurrentMixer(self, frame)


class LSTMCell(RecurrentCell):
    """torch's LSTM of one layer."""

    def __init__(self, dim: int, bias: bool) -> None:
        super().__init__()
        self.dim = dim
        self.rnn = nn.LSTM(dim, dim, bias=bias, batch_first=True)

    def start(self, batch: int) -> Memory:
        """h and c are 0."""
        zeros = self.rnn.all_weights[0][1].new_zeros(batch, self.dim)
        return zeros, zeros.clone()

    def forward(self, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """All tokens by one call."""
        return torch_rnn(torch.lstm, x, memory, self.rnn.all_weights[0])

    def plain(self, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The equation."""
        (h, c), (w_x, w_h, *biases) = memory, self.rnn.all_weights[0]
        b_x, b_h = biases or (None, None)
        gates = F.linear(x, w_x, b_x) + F.linear(h, w_h, b_h)
        i, f, g, o = gates.chunk(4, dim=-1)  # (b, c)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, (h, c)
