"""The required attention span: how far, on average, a trained model looks.

    span = Σ_j a_ij·|i − j|,   averaged over queries i and samples, for each layer and head

(Tay et al. 2020, Long Range Arena, section 3.5, https://arxiv.org/abs/2011.04006). The weights a_ij
are not read from a kernel, which keeps them to itself. A mixer's output before its last matrix is
linear in the values v, so a_ij is the derivative of output i by value j, and one backward pass
gives whole rows of weights, of any mechanism that has values: softmax under a pattern, feature
maps, hashing, low rank. Rows are made positive and scaled to sum 1, which changes nothing where
they are probabilities. A mechanism without values (`to_v`), or whose values are not those of the
tokens one by one, has no span.

Indices count real tokens, registers in front of them. Queries are drawn at random: an unbiased
estimate of the average over all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weft.layers.projections.dense import Projections
from weft.models import EncoderDecoder
from weft.models.registry import TrunkModel
from weft.objectives.batch import Batch
from weft.rows import Row

QUERIES = 8  # drawn in each sample
AT_ONCE = 8  # samples in a batch


def required_spans(
    model: Any,
    examples: Any,
    *,
    samples: int = 128,
    seed: int = 0,
    device: Any = "cpu",
    seconds: float | None = None,
) -> list[Row]:
    """A row for each layer and head: layer, head, span, samples, queries; none without values.

    After `seconds`, the samples so far are enough; there is always one batch of them.
    """
    if isinstance(model.config.trunk, EncoderDecoder):
        return []  # who looks how far, in two sequences at once, is another question
    model = model.to(device).eval()
    draw = np.random.default_rng(seed)
    chosen = draw.permutation(len(examples))[:samples]
    found: list[dict[int, Tensor]] = []
    began, seen = time.perf_counter(), 0
    for at in range(0, len(chosen), AT_ONCE):
        batch = examples.batch(chosen[at : at + AT_ONCE]).to(device)
        lengths = np.full(len(batch), batch.x.shape[1])
        if batch.valid is not None:
            lengths = batch.valid.sum(1).cpu().numpy().clip(min=1)
        most = lengths[:, None] + model.trunk.registers
        index = draw.integers(0, most, size=(len(batch), QUERIES))  # (b, queries)
        found.append(spans_of(model, batch, torch.from_numpy(index).to(device)))
        seen += len(batch)
        if seconds is not None and time.perf_counter() - began > seconds:
            break
    layers = found[0] if found else {}
    return [row for at in layers for row in _rows(at, [own[at] for own in found], seen)]


def spans_of(model: TrunkModel, batch: Batch, queries: Tensor) -> dict[int, Tensor]:
    """By layer, the spans (b, g, r) of the queries (b, r); NaN where a query reads no value.

    g counts key heads; those of several attentions in one layer stand one after another.
    """
    return _watched(model, batch, queries, batch.x.shape[1], _mean_distance)


def attention_rows(
    model: TrunkModel, batch: Batch, queries: Tensor, rows: int
) -> dict[int, Tensor]:
    """By layer, the weights (b, n, g, r) that the queries (b, r) give to all n keys; sums are 1.

    `rows` are those of the stack without registers, which stand in front.
    """
    return _watched(model, batch, queries, rows, _scaled)


Reduced = Callable[[Tensor, Tensor], Tensor]


def _watched(
    model: TrunkModel, batch: Batch, queries: Tensor, rows: int, reduced: Reduced
) -> dict[int, Tensor]:
    """What `reduced` makes of the weights of each layer."""
    if not hasattr(model.trunk, "stack"):
        return {}  # latents: no token reads another
    rows += model.trunk.registers
    paths = [
        (layer, part, _Watch(mixer.frame.kv_heads, rows, queries, reduced))
        for layer, mixer in enumerate(model.trunk.stack.mixers)
        for part in mixer.modules()
        if all(isinstance(getattr(part, name, None), nn.Linear) for name in ("to_v", "to_out"))
    ]
    with _constant(model), _hooked([(part, watch) for _, part, watch in paths]):
        model.trunk.read(batch.x, **batch.given)
    found: dict[int, list[Tensor]] = {}
    for layer, _, watch in paths:
        if watch.found is not None:
            found.setdefault(layer, []).append(watch.found)
    return {layer: torch.cat(own, dim=-2) for layer, own in found.items()}


def _mean_distance(weights: Tensor, index: Tensor) -> Tensor:
    """Weights (b, n, g, r) of queries (b, r) -> (b, g, r)."""
    place = torch.arange(weights.shape[1], device=index.device)
    distance = (place[:, None] - index[:, None]).abs()[:, :, None]  # (b, n, 1, r)
    return (weights * distance).sum(1) / weights.sum(1)


def _scaled(weights: Tensor, _: Tensor) -> Tensor:
    """Weights (b, n, g, r) whose sums over n are 1."""
    return weights / weights.sum(1, keepdim=True)


@dataclass
class _Watch:
    """Follows the values of one attention through it."""

    heads: int
    rows: int  # n, registers included
    queries: Tensor  # (b, r)
    reduced: Reduced  # weights (b, n, g, r) and their queries -> (..., g, r)
    values: list[Tensor] = field(default_factory=list)  # leaves (b, n, g·d)
    found: Tensor | None = None  # (..., g, r)

    def keep(self, _: nn.Module, __: Any, output: Tensor) -> Tensor:
        """The values, as the start of a graph of their own."""
        self.values.append(output.detach().requires_grad_())
        return self.values[-1]

    def weigh(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        """Channel c of an output depends on channel c of the values: a query for each channel."""
        (mixed,) = inputs  # (b, n, h·d)
        seen = (mixed, *self.values)
        if not self.values or any(x.shape[:2] != (len(mixed), self.rows) for x in seen):
            return (mixed.detach(),)  # rows that are not the tokens have no distance
        width = self.values[0].shape[-1] // self.heads
        outputs = mixed.unflatten(-1, (-1, width))  # (b, n, h, d)
        parts = [self._some(outputs, index) for index in self.queries.split(width, dim=1)]
        self.found = torch.cat(parts, dim=-1)
        return (mixed.detach(),)

    def _some(self, outputs: Tensor, index: Tensor) -> Tensor:
        """Of queries (b, r), r ≤ d."""
        rows = torch.arange(len(index), device=index.device)[:, None]
        channels = torch.arange(index.shape[1], device=index.device)
        chosen = outputs[rows, index, :, channels].sum()
        grads = torch.autograd.grad(chosen, self.values, retain_graph=True, allow_unused=True)
        total = sum((g for g in grads if g is not None), torch.zeros_like(self.values[0]))
        weights = total.unflatten(-1, (self.heads, -1))[..., channels].abs()  # (b, n, g, r)
        return self.reduced(weights, index)


@contextmanager
def _hooked(paths: list[tuple[Any, _Watch]]) -> Iterator[None]:
    """Let each watch see its values come and its outputs go."""
    handles = []
    for part, watch in paths:
        handles.append(part.to_v.register_forward_hook(watch.keep))
        handles.append(part.to_out.register_forward_pre_hook(watch.weigh))
        if isinstance(part, Projections):
            # One wide product for q, k and v would pass `to_v` by.
            part.qkv = MethodType(lambda own, x: [own.q(x), own.k(x), own.v(x)], part)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for part, _ in paths:
            vars(part).pop("qkv", None)


@contextmanager
def _constant(model: TrunkModel) -> Iterator[None]:
    """Gradients of values alone."""
    learns = [p for p in model.parameters() if p.requires_grad]
    for parameter in learns:
        parameter.requires_grad_(False)
    try:
        with torch.enable_grad():
            yield
    finally:
        for parameter in learns:
            parameter.requires_grad_(True)


def _rows(layer: int, parts: list[Tensor], samples: int) -> Iterator[Row]:
    """The means over samples and queries."""
    spans = torch.cat(parts).double()  # (samples, g, r)
    for head in range(spans.shape[1]):
        known = spans[:, head][~spans[:, head].isnan()]
        if len(known):
            place = {"layer": layer, "head": head}
            yield {**place, "span": float(known.mean()), "samples": samples, "queries": len(known)}
