"""Generation: the prompt in one step, then token by token through the decoding state.

Prompts of different lengths run in groups of equal length, so no padding enters and each row comes
out as if it were alone. Drawing: u uniform in [0, 1), the token is the first whose cumulative
probability exceeds u, in order of falling probability; softmax and sums in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import WeftError


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is taken from its scores."""

    temperature: float = 0.0  # 0: the best token
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise WeftError(f"temperature is 0 (the best token) or more; got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise WeftError(f"top_k keeps at least 1 token; got top_k={self.top_k}")
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise WeftError(f"top_p is a probability in (0, 1]; got top_p={self.top_p}")
        if self.temperature == 0 and (self.top_k is not None or self.top_p is not None):
            raise WeftError(
                "temperature=0 takes the best token, so top_k and top_p have nothing to do; "
                "give a temperature above 0"
            )

    def generators(self, rows: int) -> list[torch.Generator]:
        """One source of random numbers for each row."""
        seed = self.seed if self.seed is not None else int(torch.randint(2**62, ()))
        # Far apart, so that row 1 of one seed is not row 0 of the next.
        first = seed * 0x9E3779B97F4A7C15
        return [torch.Generator().manual_seed((first + row) % 2**63) for row in range(rows)]

    def pick(self, scores: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Scores (b, vocab) -> one token per row, (b,)."""
        if self.temperature == 0:
            return scores.argmax(-1)
        draws = [torch.rand((), generator=own, dtype=torch.float64) for own in generators]
        uniform = torch.stack(draws).to(scores.device)  # (b,)
        ranked, tokens = scores.double().sort(dim=-1, descending=True, stable=True)
        weights = self._kept((ranked / self.temperature).softmax(-1))  # (b, vocab)
        cumulative = weights.cumsum(-1)  # (b, vocab)
        target = uniform[:, None] * cumulative[:, -1:]  # (b, 1)
        place = (cumulative <= target).sum(-1, keepdim=True)  # (b, 1)
        return tokens.gather(-1, place.clamp(max=(weights > 0).sum(-1, keepdim=True) - 1))[:, 0]

    def _kept(self, ranked: Tensor) -> Tensor:
        """Falling probabilities (b, vocab), 0 beyond top_k and top_p; the best is always kept."""
        if self.top_k is not None:
            ranked = ranked.clone()
            ranked[:, self.top_k :] = 0.0
            ranked = ranked / ranked.sum(-1, keepdim=True)
        if self.top_p is not None:
            before = ranked.cumsum(-1) - ranked  # (b, vocab)
            ranked = ranked.masked_fill((before >= self.top_p), 0.0)
        return ranked


@torch.no_grad()
def generate(
    model: Any,
    prompts: Tensor | Sequence[Tensor],
    new: int,
    sampling: Sampling,
    stop: set[int],
    source: dict[str, Any],
) -> Tensor | list[Tensor]:
    """Continue every prompt by `new` tokens, or up to a token of `stop`."""
    embedding = model.trunk.embedding
    rows = [_checked(row).to(embedding.table.device, torch.long) for row in prompts]
    if new < 0:
        raise WeftError(f"max_new_tokens is 0 or more; got {new}")
    for row in rows:
        embedding.check_ids(row)
        # The last token is returned, never read.
        embedding.check_length(len(row) + max(new - 1, 0))
    if source and len(source["source"]) != len(rows):
        raise WeftError(f"one source for each prompt: got {len(source['source'])} and {len(rows)}")
    generators = sampling.generators(len(rows))
    results: dict[int, Tensor] = {}
    with _evaluating(model):
        for length in sorted({len(row) for row in rows}):
            group = [i for i, row in enumerate(rows) if len(row) == length]
            ids = torch.stack([rows[i] for i in group])  # (b, n)
            picked = {k: v if v is None else v[group].to(ids.device) for k, v in source.items()}
            chance = [generators[i] for i in group]
            grown = _continue(model, ids, new, sampling, chance, stop, picked)
            results.update(zip(group, grown, strict=True))
    if isinstance(prompts, Tensor):
        return torch.stack([results[i] for i in range(len(rows))]) if rows else prompts
    return [_trimmed(results[i], len(row), stop) for i, row in enumerate(rows)]


def _continue(
    model: Any,
    ids: Tensor,
    new: int,
    sampling: Sampling,
    generators: Sequence[torch.Generator],
    stop: set[int],
    source: dict[str, Any],
) -> Tensor:
    """Rows of equal length (b, n) -> (b, n + new), shorter if all rows have ended."""
    ends = torch.tensor(sorted(stop), device=ids.device, dtype=ids.dtype)
    ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    state, last, grown = model.start(len(ids), **source), ids, [ids]
    for _ in range(new):
        hidden, state = model.trunk.step(last, state)
        token = sampling.pick(model.scores(hidden[:, -1]), generators)  # (b,)
        # An ended row repeats its last token, the one that ended it.
        token = torch.where(ended, last[:, -1], token)
        ended = ended | torch.isin(token, ends)
        last = token[:, None]  # (b, 1)
        grown.append(last)
        if stop and bool(ended.all()):
            break
    return torch.cat(grown, dim=1)


def _trimmed(row: Tensor, prompt: int, stop: set[int]) -> Tensor:
    """Cut what follows the first token of `stop` behind the prompt."""
    for place, token in enumerate(row.tolist()):
        if place >= prompt and token in stop:
            return row[: place + 1]
    return row


def _checked(row: Tensor) -> Tensor:
    if not isinstance(row, Tensor) or row.dim() != 1 or row.is_floating_point() or not len(row):
        raise WeftError(
            "prompts are integer ids, (batch, length) or a list of (length,), with at least one "
            f"token each; got a row {tuple(row.shape) if isinstance(row, Tensor) else row!r}"
        )
    return row


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """No dropout inside; afterwards every module trains or not, as before."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
