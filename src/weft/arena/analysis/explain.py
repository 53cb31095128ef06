"""What a classifier's answer rests on, token by token: what was looked at, and what moved it.

    attended_j   mean over layers, heads and queries i of the weight a_ij      sums to 1
    influence_j  ∂m/∂e_j · e_j,   m = log p_c − log(1 − p_c),   e_j the embedded token

Weights are those of `weft.arena.analysis.span`, of any mechanism that has values; influence needs
nothing of the mechanism. A token that is looked at need not matter, and the other way round, so
both are shown. Influence is a first-order answer: by how much m would fall, about, if the
embedding of a token became 0 (gradient × input: Shrikumar et al. 2016,
https://arxiv.org/abs/1605.01713).

A model that shortens its input first (`waveform`) is explained by frames; one that reads both
strands of DNA by the tokens as given, influences of both strands added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.arena.analysis.span import attention_rows
from weft.errors import Unsupported
from weft.generate.decoding import evaluating
from weft.objectives.batch import Batch

MOST_QUERIES = 128  # evenly spaced


@dataclass(frozen=True, eq=False)
class Explained:
    """One document and a model's answer."""

    answer: int  # a class
    probability: float
    influence: np.ndarray  # (n,)
    attended: np.ndarray | None  # (n,); None where the mechanism has no weights


def explain(model: Any, batch: Batch, answer: int | None = None) -> Explained:
    """Explain the answer of a classifier to a batch of one row without padding."""
    if not hasattr(model.config, "classes") or not hasattr(model.trunk, "embedding"):
        raise Unsupported(
            "answers of classifiers on a trunk with one embedding are explained; got "
            f"{type(model.config).__name__} on {type(model.config.trunk).__name__}"
        )
    with evaluating(model), torch.enable_grad():
        embedded, scores = _watched(model, batch)
        scores = scores[0].double()
        chosen = int(scores.argmax()) if answer is None else answer
        others = torch.cat((scores[:chosen], scores[chosen + 1 :]))
        margin = scores[chosen] - others.logsumexp(0)
        grads = torch.autograd.grad(margin, embedded)
        parts = [(e * g).sum(-1)[0].double() for e, g in zip(embedded, grads, strict=True)]
        influence = parts[0]
        for other in parts[1:]:  # the other strand, read from its start
            influence = influence + other.flip(0)
        attended = _attended(model, batch, len(influence))
    probability = float(torch.sigmoid(margin.detach()))
    return Explained(chosen, probability, influence.detach().cpu().numpy(), attended)


def _watched(model: Any, batch: Batch) -> tuple[list[Tensor], Tensor]:
    """What the embedding gave, (1, n, c) for each call, and the scores (1, classes)."""
    seen: list[Tensor] = []

    def keep(_: Any, __: Any, output: Tensor) -> Tensor:
        seen.append(output.detach().requires_grad_())
        return seen[-1]

    handle = model.trunk.embedding.register_forward_hook(keep)
    try:
        return seen, model(batch.x, **batch.given)
    finally:
        handle.remove()


def _attended(model: Any, batch: Batch, tokens: int) -> np.ndarray | None:
    """(n,) mean weight of each token, over layers, heads and queries, registers left out."""
    registers = getattr(model.trunk, "registers", 0)
    count = min(tokens + registers, MOST_QUERIES)
    queries = torch.linspace(0, tokens + registers - 1, count, device=batch.x.device)
    found = attention_rows(model, batch, queries.round().long()[None], tokens)
    if not found:
        return None
    means = [weights[0].double().mean((1, 2))[registers:] for weights in found.values()]
    total = torch.stack(means).mean(0)
    return (total / total.sum().clamp(min=1e-300)).cpu().numpy()
