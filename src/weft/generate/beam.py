"""Beam search: the most probable continuation among the few best at every step.

    score(y) = log p(y | x) / ((5 + |y|) / 6)^α,    |y| new tokens, the one that ends it included

Of all continuations of the live hypotheses by one token, the 2·beams best by log p are ranked.
Those that end are finished if they are among the first `beams`; the best `beams` that do not end
continue. The search stops once `beams` have finished; at the length limit everything finishes.
So one beam is greedy decoding, and as many beams as there are continuations search exhaustively.

Papers: Wu et al. 2016, section 7 (the length penalty), https://arxiv.org/abs/1609.08144; Vaswani et
al. 2017, section 6.1 (4 beams, α = 0.6), https://arxiv.org/abs/1706.03762. Differs from the first:
no coverage penalty, no pruning. The search is that of the Transformers library with
`early_stopping=True`, which divides by |y|^length_penalty instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.errors import WeftError


@dataclass(frozen=True, kw_only=True)
class Beams:
    """How wide to search, and how finished hypotheses of different lengths compare."""

    width: int = 4
    length_penalty: float = 0.6  # α: 0 favours short ones, larger values long ones

    def __post_init__(self) -> None:
        if self.width < 1:
            raise WeftError(f"beams is at least 1; got {self.width}")

    def score(self, log_probability: float, tokens: int) -> float:
        """The score that finished hypotheses are ranked by."""
        return log_probability / ((5 + tokens) / 6) ** self.length_penalty


@dataclass(frozen=True)
class Hypothesis:
    """A finished continuation."""

    tokens: tuple[int, ...]
    log_probability: float
    score: float


@dataclass
class _Live:
    """The hypotheses of all rows that are not done: `beams` slots for each row."""

    rows: list[int]
    state: Any
    scores: Tensor  # (b·beams, vocab) of the next token
    log_probability: Tensor  # (b, beams), -inf where there is no hypothesis
    tokens: Tensor  # (b, beams, length)


@torch.no_grad()
def beam_search(
    model: Any, prompts: Tensor, new_tokens: int, ends: Sequence[int], beams: Beams, source: Any
) -> list[list[Hypothesis]]:
    """For each prompt (b, n) its finished hypotheses, the best first, at most `beams.width`."""
    finished: list[list[Hypothesis]] = [[] for _ in prompts]
    if not new_tokens or not len(prompts):
        return [[Hypothesis((), 0.0, 0.0)] for _ in prompts]
    live = _started(model, prompts, beams, source)
    stop = torch.tensor(sorted(ends), device=prompts.device)
    for made in range(1, new_tokens + 1):
        parent, token, log_probability = _ranked(live, beams)  # (b, 2·beams) each
        ending = torch.isin(token, stop) if made < new_tokens else torch.ones_like(token).bool()
        _collect(finished, live, beams, parent, token, log_probability, ending)
        open_ended = (log_probability.isfinite() & ~ending).any(-1).tolist()
        short = [len(finished[row]) < beams.width for row in live.rows]
        going = [
            i for i, (one, other) in enumerate(zip(open_ended, short, strict=True)) if one and other
        ]
        if not going:
            break
        live = _onward(model, live, beams, going, parent, token, log_probability, ending)
    best = [sorted(found, key=lambda one: -one.score) for found in finished]
    return [found[: beams.width] for found in best]


def _started(model: Any, prompts: Tensor, beams: Beams, source: dict[str, Any]) -> _Live:
    """Read the prompts; each row starts with one empty hypothesis."""
    count, places = len(prompts), beams.width
    scores, state = model.next_scores(prompts, model.start(count, **source))
    repeat = torch.arange(count, device=prompts.device).repeat_interleave(places)
    log_probability = scores.new_full((count, places), -torch.inf, dtype=torch.float64)
    log_probability[:, 0] = 0.0
    empty = prompts.new_zeros(count, places, 0)
    return _Live(list(range(count)), state.select(repeat), scores[repeat], log_probability, empty)


def _ranked(live: _Live, beams: Beams) -> tuple[Tensor, Tensor, Tensor]:
    """The 2·beams best continuations of each row: slot of the parent, token, log p."""
    vocab = live.scores.shape[-1]
    steps = live.scores.double().log_softmax(-1).view(len(live.rows), beams.width, vocab)
    total = (live.log_probability[..., None] + steps).flatten(1)  # (b, beams·vocab)
    # A stable sort takes the first of equals, as argmax does.
    best, place = total.sort(dim=-1, descending=True, stable=True)
    best, place = best[:, : 2 * beams.width], place[:, : 2 * beams.width]
    return place // vocab, place % vocab, best


def _collect(
    finished: list[list[Hypothesis]],
    live: _Live,
    beams: Beams,
    parent: Tensor,
    token: Tensor,
    log_probability: Tensor,
    ending: Tensor,
) -> None:
    """Add the hypotheses that end among the first `beams` to `finished`."""
    ends = ending[:, : beams.width] & log_probability[:, : beams.width].isfinite()
    for i, rank in ends.nonzero().tolist():
        before = live.tokens[i, parent[i, rank]].tolist()
        tokens, value = (*before, int(token[i, rank])), float(log_probability[i, rank])
        finished[live.rows[i]].append(Hypothesis(tokens, value, beams.score(value, len(tokens))))


def _onward(
    model: Any,
    live: _Live,
    beams: Beams,
    going: list[int],
    parent: Tensor,
    token: Tensor,
    log_probability: Tensor,
    ending: Tensor,
) -> _Live:
    """The best `beams` that do not end, of the rows that are not done, one token further."""
    width, index = beams.width, torch.tensor(going, device=token.device)
    alive = log_probability.masked_fill(ending, -torch.inf)[index]  # (b, 2·beams)
    best, rank = alive.sort(dim=-1, descending=True, stable=True)
    best, rank = _padded(best, width, -torch.inf), _padded(rank, width, 0)  # (b, beams)
    parent, token = parent[index].gather(1, rank), token[index].gather(1, rank)
    state = live.state.select((index[:, None] * width + parent).flatten())
    scores, state = model.next_scores(token.reshape(-1, 1), state)
    before = live.tokens[index[:, None], parent]  # (b, beams, length)
    tokens = torch.cat((before, token[..., None]), dim=-1)
    return _Live([live.rows[i] for i in going], state, scores, best, tokens)


def _padded(values: Tensor, width: int, fill: float) -> Tensor:
    """(b, k) -> (b, width): cut, or padded where a tiny vocabulary gives fewer."""
    missing = max(width - values.shape[1], 0)
    extra = values.new_full((len(values), missing), fill)
    return torch.cat((values[:, :width], extra), dim=1)
