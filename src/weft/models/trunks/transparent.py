"""Transparent attention: every reading sublayer of a decoder reads its own mix of encoder layers.

    z_j = norm(Σ_i s_ij h_i),    s_j = softmax of column j of W (N + 1, reads),    j = 1 ... reads

h_0 is what enters the encoder's first layer, h_i what leaves layer i, norm the encoder's last one.
W starts at 0: the mean of all layers. A column that is one-hot at N is an ordinary encoder-decoder.
Dropout acts on W. Memory: the context is kept once for each reading sublayer.

Paper: Bapna et al. 2018, section 3, https://arxiv.org/abs/1808.07561
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Transparent(nn.Module):
    """(N + 1) states of an encoder -> one context for each of `reads` sublayers."""

    def __init__(self, layers: int, reads: int, dropout: float) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(layers + 1, reads))
        self.dropout = dropout

    def forward(self, states: list[Tensor]) -> Tensor:
        """N + 1 of (b, m, c) -> (b, reads, m, c)."""
        weights = F.dropout(self.logits, self.dropout, self.training).softmax(0)
        first, *rest = states
        mixed = torch.einsum("j,bmc->bjmc", weights[0].to(first.dtype), first)
        for weight, state in zip(weights[1:], rest, strict=True):
            mixed = mixed + torch.einsum("j,bmc->bjmc", weight.to(state.dtype), state)
        return mixed
