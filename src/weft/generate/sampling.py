"""From scores to the next token: the best one, or a draw.

Filters apply in this order, each to what the one before it left:

    1 repetition penalty   score s of a token seen before becomes s / θ if s > 0, else s · θ
    2 temperature          p = softmax(s / temperature); 0: the best token, of equals the first
    3 top-k                the k best, exactly k also where scores are equal
    4 top-p                a token is kept while the probability of those before it is below p,
                           so the smallest set that holds at least p; the best is always kept
    5 min-p                tokens at least min_p times as probable as the best

Drawing: u uniform in [0, 1), the token is the first whose cumulative probability exceeds u, in
descending probability; softmax and sums in float64. Each row has its own random numbers, which
depend on the seed and the index of the row only.

Papers: repetition penalty, Keskar et al. 2019, section 4.1, https://arxiv.org/abs/1909.05858;
top-p, Holtzman et al. 2019, https://arxiv.org/abs/1904.09751; min-p, Nguyen et al. 2024,
https://arxiv.org/abs/2407.01082
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.errors import WeftError


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen from its scores."""

    temperature: float = 0.0  # 0: the best token
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0  # above 1 makes tokens of the prompt and the text rarer
    seed: int | None = None  # None: drawn from torch's global generator

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise WeftError(f"temperature is 0 (the best token) or more; got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise WeftError(f"top_k keeps at least 1 token; got top_k={self.top_k}")
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise WeftError(f"top_p is a probability in (0, 1]; got top_p={self.top_p}")
        if self.min_p is not None and not 0.0 <= self.min_p <= 1.0:
            raise WeftError(f"min_p is a share of the best in [0, 1]; got min_p={self.min_p}")
        if not self.repetition_penalty > 0:
            raise WeftError(
                "repetition_penalty is above 0, and 1 changes nothing; "
                f"got {self.repetition_penalty}"
            )
        filters = (self.top_k, self.top_p, self.min_p)
        if self.temperature == 0 and any(value is not None for value in filters):
            raise WeftError(
                "temperature=0 takes the best token, so top_k, top_p and min_p have no effect; "
                "give a temperature above 0"
            )

    @property
    def remembers(self) -> bool:
        """Whether a draw depends on the tokens seen before."""
        return self.repetition_penalty != 1.0

    def generators(self, rows: int) -> list[torch.Generator]:
        """A random generator for each row."""
        seed = self.seed if self.seed is not None else int(torch.randint(2**62, ()))
        # Far apart, so that row 1 of one seed is not row 0 of the next.
        first = seed * 0x9E3779B97F4A7C15
        return [torch.Generator().manual_seed((first + row) % 2**63) for row in range(rows)]

    def pick(
        self,
        scores: Tensor,
        generators: Sequence[torch.Generator],
        seen: Tensor | None = None,
    ) -> Tensor:
        """Scores (b, vocab) -> one token per row, (b,); `seen` (b, vocab) marks earlier tokens."""
        scores = self.penalised(scores, seen)
        if self.temperature == 0:
            return scores.argmax(-1)
        draws = [torch.rand((), generator=own, dtype=torch.float64) for own in generators]
        uniform = torch.stack(draws).to(scores.device)  # (b,)
        ranked, tokens = scores.double().sort(dim=-1, descending=True, stable=True)
        weights = self.filtered((ranked / self.temperature).softmax(-1))  # (b, vocab)
        cumulative = weights.cumsum(-1)  # (b, vocab)
        target = uniform[:, None] * cumulative[:, -1:]  # (b, 1)
        place = (cumulative <= target).sum(-1, keepdim=True)  # (b, 1)
        return tokens.gather(-1, place.clamp(max=(weights > 0).sum(-1, keepdim=True) - 1))[:, 0]

    def penalised(self, scores: Tensor, seen: Tensor | None) -> Tensor:
        """Scores (b, vocab) after the repetition penalty."""
        if seen is None or not self.remembers:
            return scores
        penalty = self.repetition_penalty
        return torch.where(
            seen, torch.where(scores > 0, scores / penalty, scores * penalty), scores
        )

    def filtered(self, ranked: Tensor) -> Tensor:
        """Descending probabilities (b, vocab) -> 0 where filtered out; the sum may be below 1."""
        if self.top_k is not None:
            ranked = ranked.clone()
            ranked[:, self.top_k :] = 0.0
            ranked = ranked / ranked.sum(-1, keepdim=True)
        if self.top_p is not None:
            before = ranked.cumsum(-1) - ranked  # (b, vocab)
            ranked = ranked.masked_fill(before >= self.top_p, 0.0)
        if self.min_p is not None:
            ranked = ranked.masked_fill(ranked < self.min_p * ranked[:, :1], 0.0)
        return ranked
