"""What a classifier's answer rests on, token by token: what was looked at, and what moved it.

    attended_j   mean over layers, heads and queries i of the weight a_ij      sums to 1
    influence_j  m(e) − m(e with e_j = the mean of all e),   m = log p_c − log(1 − p_c)

e are the embedded tokens of a document. Weights are those of `weft.arena.analysis.span`, of any
mechanism that has values; influence needs nothing of the mechanism. A token that is looked at need
not matter, and the other way round, so both are shown. Influence is measured, a forward pass for
each token (occlusion: Zeiler and Fergus 2013, section 4.2, https://arxiv.org/abs/1311.2901). A
gradient is not enough: norms make a layer nearly blind to the length of what it reads, so
∂m/∂e_j · e_j is nearly 0 for every token.

A model that shortens its input first (`waveform`) is explained by frames; one that reads both
strands of DNA by the tokens as given, a base left out of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
TOKENS = 32_768  # of a batch of documents, in each of which one token is left out


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
    with evaluating(model), torch.no_grad():
        scores, tokens = _without(model, batch, None)
        chosen = int(scores[0].argmax()) if answer is None else answer
        whole = _margins(scores, chosen)  # (1,)
        each = max(1, TOKENS // tokens)
        places = torch.arange(tokens, device=batch.x.device).split(each)
        left = torch.cat([_margins(_without(model, batch, some)[0], chosen) for some in places])
    attended = _attended(model, batch, tokens)
    probability = float(torch.sigmoid(whole[0]))
    return Explained(chosen, probability, (whole - left).cpu().numpy(), attended)


def _margins(scores: Tensor, answer: int) -> Tensor:
    """Scores (b, classes) -> log p − log(1 − p) of a class, (b,)."""
    scores = scores.double()
    others = torch.cat((scores[:, :answer], scores[:, answer + 1 :]), dim=1)
    return scores[:, answer] - others.logsumexp(1)


def _without(model: Any, batch: Batch, places: Tensor | None) -> tuple[Tensor, int]:
    """Scores (r, classes) of a document without each of the tokens (r,), and how many there are.

    A model of two strands embeds the other one second, read from its end.
    """
    count = 1 if places is None else len(places)
    many = {name: t.expand(count, *t.shape[1:]) for name, t in batch.tensors().items()}
    batch, calls = batch.with_tensors(many), list[int]()

    def leave_out(output: Tensor) -> Tensor:
        front, output = output[:, :registers], output[:, registers:].clone()  # (r, n, c)
        n = output.shape[1]
        calls.append(n)
        if places is not None:
            own = places if len(calls) == 1 else n - 1 - places
            output[torch.arange(count, device=own.device), own] = output[0].mean(0)
        return torch.cat((front, output), dim=1)

    registers = getattr(model.trunk, "registers", 0)
    with _embedded(model.trunk.embedding, leave_out, whole=registers > 0):
        return model(batch.x, **batch.given), calls[0]


@contextmanager
def _embedded(embedding: Any, changed: Callable[[Tensor], Tensor], whole: bool) -> Iterator[None]:
    """Change what an embedding gives; the `whole` of it has registers in front."""
    if not whole:
        handle = embedding.register_forward_hook(lambda _, __, output: changed(output))
        try:
            yield
        finally:
            handle.remove()
        return
    plain = embedding.with_registers
    embedding.with_registers = lambda *args, **given: changed(plain(*args, **given))
    try:
        yield
    finally:
        del embedding.with_registers


def _attended(model: Any, batch: Batch, tokens: int) -> np.ndarray | None:
    """(n,) mean weight of each token, over layers, heads and queries, registers left out."""
    registers = getattr(model.trunk, "registers", 0)
    count = min(tokens + registers, MOST_QUERIES)
    queries = torch.linspace(0, tokens + registers - 1, count, device=batch.x.device)
    found = attention_rows(model, batch, queries.round().long()[None], tokens)
    if not found:
        return None
    # NaN: queries with values of their own, as global ones may have, say nothing of tokens here.
    rows = [weights[0].double().nan_to_num(0.0) for weights in found.values()]  # (n, g, r)
    means = [weights.mean((1, 2))[registers:] for weights in rows]
    total = torch.stack(means).mean(0)
    return (total / total.sum().clamp(min=1e-300)).cpu().numpy()
