"""Weighted heads: each head of an attention passes a feed-forward of its own account.

    out = Σ_i α_i FFN(κ_i (head_i W_i + b)),    α = softmax(a),  κ = softmax(k) over the heads

W_i are the rows of the output projection that belong to head i, b its bias, FFN one feed-forward
for all heads. One sublayer, the letter 'w', takes the place of "sf". α and κ start uniform.

Time: that of the attention and `heads` feed-forwards. Decoding keeps the mixer's state.

Paper: Ahmed et al. 2017, section 3, https://arxiv.org/abs/1711.02132
Differs from it: α and κ stay on the simplex by a softmax; FFN is shared (as in Narang et al. 2021,
https://arxiv.org/abs/2102.11972).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import Unsupported
from weft.feedforward import FeedForward
from weft.mixers import Mixer, State
from weft.models.stack.sublayer import MixingSublayer, StackInputs


class WeightedHeads(nn.Module):
    """A mixer without its output projection, that projection, and the feed-forward of its heads."""

    def __init__(self, mixer: Mixer, feedforward: FeedForward) -> None:
        super().__init__()
        project: Any = getattr(mixer, "project", None)
        if not isinstance(getattr(project, "to_out", None), nn.Linear):
            raise Unsupported(
                f"'w' weighs the heads of an attention with a dense output projection; "
                f"{mixer.config.name} has none here; use 's' and 'f'"
            )
        if hasattr(feedforward, "start"):
            raise Unsupported("'w' runs its feed-forward once for each head, so it keeps no state")
        self.mixer, self.feedforward = mixer, feedforward
        # The mixer then returns its heads concatenated: (b, n, h·d).
        self.from_heads, project.to_out = project.to_out, nn.Identity()
        self.alpha = nn.Parameter(torch.zeros(project.heads))
        self.kappa = nn.Parameter(torch.zeros(project.heads))

    def weigh(self, heads: Tensor, valid: Tensor | None = None) -> Tensor:
        """Concatenated heads (b, n, h·d) -> (b, n, c)."""
        b, n, _ = heads.shape
        count, c = len(self.alpha), self.from_heads.out_features
        apart = self.from_heads.weight.unflatten(1, (count, -1))  # (c, h, d)
        y = torch.einsum("bnhd,chd->bhnc", heads.unflatten(-1, (count, -1)), apart)
        if self.from_heads.bias is not None:
            y = y + self.from_heads.bias
        y = y * self.kappa.softmax(-1)[:, None, None]  # (b, h, n, c)
        real = None if valid is None else valid.repeat_interleave(count, dim=0)
        y = self.feedforward(y.flatten(0, 1), valid=real).view(b, count, n, c)
        return torch.einsum("bhnc,h->bnc", y, self.alpha.softmax(-1))


class WeightedSublayer(MixingSublayer):
    """'w': tokens read their sequence, and each head passes the feed-forward."""

    letter = "w"
    body: WeightedHeads

    def call(self, x: Tensor, given: StackInputs) -> Tensor:
        """Mix the sequence, weigh the heads."""
        given_to = {"valid": given.valid, "aligned": given.aligned}
        heads = self.body.mixer(x, **given_to, **self.marks(x, given))
        return self.body.weigh(heads, given.valid)

    def call_step(
        self, x: Tensor, given: StackInputs, state: State | None
    ) -> tuple[Tensor, State | None]:
        """The same for the next tokens."""
        assert state is not None
        heads, state = self.body.mixer.step(x, state)
        return self.body.weigh(heads), state
