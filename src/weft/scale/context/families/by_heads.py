"""Mixers that sort or mix whole sequences: each rank takes all tokens of some heads (all-to-all).

    own tokens, all heads  ->  all tokens, own heads  ->  the mechanism  ->  own tokens, all heads

Work and memory are those of h / ranks heads; what is sent is each token once, to the rank of its
head, and its result back. Heads are shared out with the keys they share; where there are fewer key
heads than ranks, keys are repeated, and with fewer heads than ranks some ranks wait. The Fourier
transform has channels in the place of heads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from weft.kernels.dense.reference import expand_heads
from weft.kernels.nsa.gates import gated_sum
from weft.layers.positions import PositionScheme
from weft.mixers.base import Mixer
from weft.mixers.blockbert import BlockBertAttention
from weft.mixers.bp_transformer import BPAttention
from weft.mixers.entmax import EntmaxAttention
from weft.mixers.fnet import FourierMixing
from weft.mixers.nsa import NSAAttention
from weft.mixers.reformer import ReformerAttention
from weft.mixers.routing import RoutingAttention
from weft.mixers.sinkhorn import SinkhornAttention
from weft.mixers.transformer_xl import TransformerXLAttention
from weft.patterns.region import Ints
from weft.scale.context.bill import Bill, moved
from weft.scale.context.families.along import mix_segments, segments_bill
from weft.scale.context.families.tokens import heads, heads_bill
from weft.scale.context.shards import Shards
from weft.scale.context.split import Given, parallel
from weft.scale.context.world import World, tied

Shares = Sequence[tuple[int, int]]

# Parameters and buffers of each mixer that have a head axis: (axis, whether of query heads).
PER_HEAD: dict[type, dict[str, tuple[int, bool]]] = {
    BlockBertAttention: {"shift": (0, True)},
    BPAttention: {"query": (0, False), "labels": (1, True)},
    EntmaxAttention: {"sparsity": (0, True)},
    SinkhornAttention: {},
    ReformerAttention: {"rotations": (0, True)},
    RoutingAttention: {"centroids": (0, True)},
    TransformerXLAttention: {"content_bias": (0, True), "distance_bias": (0, True)},
    NSAAttention: {},
}


class OfHeads(PositionScheme):
    """A position scheme for the heads from `first` on."""

    def __init__(self, inner: PositionScheme, first: int) -> None:
        super().__init__()
        self.inner, self.first, self.biased = inner, first, inner.biased

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        return self.inner.rotate(x, positions)

    def at(self, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.inner.at(head + self.first, i, j)


def shares_of(mixer: Any, ranks: int) -> tuple[Shares, Shares]:
    """The query heads and the key heads of each rank."""
    h, g = mixer.frame.heads, mixer.frame.kv_heads
    if g < ranks and not isinstance(mixer, NSAAttention):
        g = h  # keys are repeated
    of_keys = [(g * r // ranks, g * (r + 1) // ranks) for r in range(ranks)]
    return [(a * (h // g), b * (h // g)) for a, b in of_keys], of_keys


def narrowed(mixer: Any, queries: tuple[int, int], keys: tuple[int, int]) -> Any:
    """The mixer with these heads alone, its parameters views of the whole ones."""
    one = _shallow(mixer)
    given = {"heads": queries[1] - queries[0], "kv_heads": keys[1] - keys[0]}
    object.__setattr__(one, "frame", dataclasses.replace(mixer.frame, **given))
    kept = {"_parameters": dict(mixer._parameters), "_buffers": dict(mixer._buffers)}
    one.__dict__ |= kept | {"_modules": dict(mixer._modules)}
    repeated = keys[1] - keys[0] == queries[1] - queries[0] != 0
    repeated = repeated and mixer.frame.kv_heads != mixer.frame.heads
    for name, (axis, of_queries) in _per_head(mixer).items():
        whole = getattr(mixer, name)
        if not of_queries and repeated:
            whole = whole.repeat_interleave(mixer.frame.heads // mixer.frame.kv_heads, axis)
        first, end = queries if of_queries else keys
        part = whole.narrow(axis, first, end - first)
        (one._parameters if name in one._parameters else one._buffers)[name] = part
    if mixer.positions.biased:
        one._modules["positions"] = OfHeads(mixer.positions, queries[0])
    return one


def _shallow(module: Any) -> Any:
    """A copy that shares all attributes; FSDP2's class would run the constructor."""
    one = object.__new__(next(kind for kind in type(module).__mro__ if not _of_fsdp(kind)))
    one.__dict__.update(module.__dict__)
    return one


def _of_fsdp(kind: type) -> bool:
    return issubclass(kind, FSDPModule)


def _per_head(mixer: Any) -> dict[str, tuple[int, bool]]:
    return next(PER_HEAD[kind] for kind in type(mixer).__mro__ if kind in PER_HEAD)


def heads_to_all(shards: Shards, shares: Shares) -> Ints:
    """Rows of one head that go from each rank to each: (from, to)."""
    counts = np.array([shards.count(rank) for rank in range(shards.ranks)])
    return counts[:, None] * np.array([b - a for a, b in shares])[None]


def travel_bill(shards: Shards, shares: Shares, numbers: int, itemsize: int, **how: Any) -> Bill:
    """Tokens to their heads: `numbers` for each token and head."""
    return moved(heads_to_all(shards, shares), numbers, itemsize, **how)


def back_bill(shards: Shards, shares: Shares, numbers: int, itemsize: int) -> Bill:
    """Results from the heads to their tokens."""
    return moved(heads_to_all(shards, shares).T, numbers, itemsize)


def _attention_bill(mixer: Any, shards: Shards, batch: int, itemsize: int) -> Bill:
    of_queries, of_keys = shares_of(mixer, shards.ranks)
    d = mixer.frame.head_dim
    bill = heads_bill(mixer, shards, batch, itemsize)
    bill = bill + travel_bill(shards, of_queries, batch * d, itemsize)
    bill = bill + travel_bill(shards, of_keys, batch * 2 * d, itemsize)
    return bill + back_bill(shards, of_queries, batch * d, itemsize)


@parallel(BlockBertAttention, BPAttention, EntmaxAttention, SinkhornAttention, bill=_attention_bill)
def mix_heads(mixer: Any, x: Tensor, given: Given, world: World) -> Tensor:
    """Attention over all tokens, head by head."""
    if given.context is not None:
        return _crossing(mixer, x, given, world)
    q, k, v = heads(mixer, x, world)
    of_queries, of_keys = shares_of(mixer, world.ranks)
    q, (k, v) = world.to_heads(q, of_queries), _keys(mixer, k, v, of_keys, world)
    valid = _real(given.valid, world)
    y = tied(q, k, v, *mixer.parameters())  # also where no head is here
    if y.shape[1]:
        one = narrowed(mixer, of_queries[world.rank], of_keys[world.rank])
        y = tied(one.attention(q, k, v, valid, crossing=False), q, k, v)
    return mixer.project.out(world.from_heads(y, of_queries))


def _crossing(mixer: Any, x: Tensor, given: Given, world: World) -> Tensor:
    """Own queries of all heads would need all keys: both go to the ranks of their heads."""
    assert given.context is not None
    assert given.source is not None
    q, k, v = mixer.heads(x, given.context)
    of_queries, of_keys = shares_of(mixer, world.ranks)
    q, (k, v) = world.to_heads(q, of_queries), _keys(mixer, k, v, of_keys, given.source)
    valid = _real(given.context_valid, given.source)
    y = tied(q, k, v, *mixer.parameters())  # also where no head is here
    if y.shape[1]:
        one = narrowed(mixer, of_queries[world.rank], of_keys[world.rank])
        y = tied(one.attention(q, k, v, valid, crossing=True), q, k, v)
    return mixer.project.out(world.from_heads(y, of_queries))


def _keys(mixer: Any, k: Tensor, v: Tensor, shares: Shares, world: World) -> tuple[Tensor, Tensor]:
    """Keys and values of the own key heads, all tokens."""
    both = expand_heads(torch.cat((k, v), -1), shares[-1][1])
    k, v = world.to_heads(both, shares).split((k.shape[-1], v.shape[-1]), -1)
    return k, v


def _real(valid: Tensor | None, world: World) -> Tensor | None:
    """Which tokens of the whole sequence are real (b, N): they come first in each row."""
    lengths = world.lengths(valid)
    if lengths is None:
        return None
    return torch.arange(world.length, device=lengths.device) < lengths[:, None]


def _txl_bill(mixer: Any, shards: Shards, batch: int, itemsize: int) -> Bill:
    if mixer.frame.causal:
        return segments_bill(mixer, shards, batch, itemsize)
    return _attention_bill(mixer, shards, batch, itemsize)


@parallel(TransformerXLAttention, bill=_txl_bill)
def mix_transformer_xl(
    mixer: TransformerXLAttention, x: Tensor, given: Given, world: World
) -> Tensor:
    """Causal: segments and their memory; both ways, all tokens of the own heads."""
    if mixer.frame.causal:
        return mix_segments(mixer, x, given, world)
    q, k, v = heads(mixer, x, world)
    of_queries, of_keys = shares_of(mixer, world.ranks)
    q, (k, v) = world.to_heads(q, of_queries), _keys(mixer, k, v, of_keys, world)
    valid = _real(given.valid, world)
    y = tied(q, k, v, *mixer.parameters())  # also where no head is here
    if y.shape[1]:
        one = narrowed(mixer, of_queries[world.rank], of_keys[world.rank])
        first, end = of_queries[world.rank]
        one._modules["to_r"] = _rows_of(mixer.to_r, first, end, mixer.frame.head_dim)
        seen = y.new_ones(len(y), world.length, dtype=torch.bool) if valid is None else valid
        seen = (seen | ~seen.any(1, keepdim=True))[:, None, None]
        y = tied(one.attend(q, k, v, seen), q, k, v)
    return mixer.project.out(world.from_heads(y, of_queries))


def _rows_of(linear: torch.nn.Linear, first: int, end: int, width: int) -> torch.nn.Module:
    """The rows of a matrix that belong to some heads."""
    one = _shallow(linear)
    one.__dict__["_parameters"] = dict(linear._parameters)
    part: Any = linear.weight.narrow(0, first * width, (end - first) * width)
    one._parameters["weight"] = part
    return one


def _shared_bill(mixer: Any, shards: Shards, batch: int, itemsize: int) -> Bill:
    of_queries, of_keys = shares_of(mixer, shards.ranks)
    d, config = mixer.frame.head_dim, mixer.config
    bill = travel_bill(shards, of_queries, batch * d, itemsize)
    bill = bill + travel_bill(shards, of_keys, batch * d, itemsize)
    if isinstance(mixer, ReformerAttention):
        bill = bill + travel_bill(shards, of_queries, batch * config.rounds, 8, learned=False)
    else:
        work = max(itemsize, 4)
        bill = bill + travel_bill(shards, of_queries, batch * d, work, learned=False)
        if mixer.training:
            bill = bill + centroids_bill(mixer, shards)
    return bill + back_bill(shards, of_queries, batch * d, itemsize)


@parallel(ReformerAttention, RoutingAttention, bill=_shared_bill)
def mix_sorted(mixer: Any, x: Tensor, given: Given, world: World) -> Tensor:
    """Own heads sort all tokens by bucket or by cluster."""
    world.need_contiguous(mixer.config.name)
    q, v, shared = mixer.project(x, world.start)
    of_queries, of_keys = shares_of(mixer, world.ranks)
    routing = isinstance(mixer, RoutingAttention)
    content = mixer.directions(shared) if routing else mixer.hash(shared).transpose(-1, -2)
    q, content = world.to_heads(q, of_queries), world.to_heads(content.detach(), of_queries)
    v = world.to_heads(expand_heads(v, of_keys[-1][1]), of_keys)
    lengths = world.lengths(given.valid)
    if lengths is None:
        lengths = torch.full((len(x),), world.length, device=x.device)
    y, one = tied(q, v, *mixer.parameters()), None
    if y.shape[1]:
        one = narrowed(mixer, of_queries[world.rank], of_keys[world.rank])
        by = one.nearness(content) if routing else content.transpose(-1, -2)
        y = tied(one.attention(q, one.keys(q), v, by, lengths), q, v)
    if routing and mixer.training:
        _move_centroids(mixer, one, content, lengths, of_queries, world)
    return mixer.out(world.from_heads(y, of_queries))


@torch.no_grad()
def _move_centroids(
    mixer: RoutingAttention,
    one: Any,
    unit: Tensor,
    lengths: Tensor,
    shares: Shares,
    world: World,
) -> None:
    """Each rank moves the centroids of its heads, and all learn of all."""
    if one is not None:
        one._buffers["centroids"] = one.centroids.clone()
        one.move(unit, lengths)
    own = mixer.centroids[:0] if one is None else one.centroids
    here, counts = torch.arange(len(own)), [b - a for a, b in shares]
    every = world.link.move(own.flatten(1), [here] * world.ranks, counts)
    mixer.centroids.copy_(every.view_as(mixer.centroids))


def centroids_bill(mixer: RoutingAttention, shards: Shards) -> Bill:
    """What routing sends in training: centroids that moved, from the rank of each head to all."""
    of_queries, _ = shares_of(mixer, shards.ranks)
    counts = np.array([b - a for a, b in of_queries])
    numbers = mixer.centroids[0].numel()
    size = mixer.centroids.element_size()
    return moved(np.repeat(counts[:, None], shards.ranks, 1), numbers, size, learned=False)


def _nsa_bill(mixer: NSAAttention, shards: Shards, batch: int, itemsize: int) -> Bill:
    of_queries, of_keys = shares_of(mixer, shards.ranks)
    d = mixer.frame.head_dim
    bill = travel_bill(shards, of_queries, batch * (d + 3), itemsize)
    bill = bill + travel_bill(shards, of_keys, batch * 6 * d, itemsize)
    return bill + back_bill(shards, of_queries, batch * d, itemsize)


@parallel(NSAAttention, bill=_nsa_bill)
def mix_nsa(mixer: NSAAttention, x: Tensor, given: Given, world: World) -> Tensor:
    """Heads that share keys choose their blocks together, on one rank."""
    q, _, *rest = mixer.project(x)
    gates = mixer.to_gates(x)  # (b, n, 3·h)
    of_queries, of_keys = shares_of(mixer, world.ranks)
    h, d = mixer.frame.heads, mixer.frame.head_dim
    by_head = gates.unflatten(-1, (3, h)).permute(0, 3, 1, 2)  # (b, h, n, 3)
    q, gate = world.to_heads(torch.cat((q, by_head.to(q.dtype)), -1), of_queries).split((d, 3), -1)
    every = world.to_heads(torch.cat(rest, -1), of_keys)  # (b, a, N, 6·d)
    y = tied(q, gate, every, *mixer.parameters())  # also where no head is here
    if y.shape[1]:
        one = narrowed(mixer, of_queries[world.rank], of_keys[world.rank])
        k, v, *others = every.split(d, -1)
        index = torch.arange(world.length, device=x.device)
        turned, selected, near = (one.positions.rotate(z, index) for z in (q, others[0], others[2]))
        slots = one.compress((k, v))
        branches = one.branches(q, turned, slots, (selected, others[1]), (near, others[3]))
        own = gate.permute(0, 2, 3, 1).flatten(2)  # (b, N, 3·a)
        joined = gated_sum(own, branches).unflatten(-1, (-1, d)).transpose(1, 2)
        y = tied(joined, q, gate, every)
    joined = world.from_heads(y, of_queries).transpose(1, 2).flatten(2)
    return mixer.to_out(joined)


def _fourier_bill(mixer: FourierMixing, shards: Shards, batch: int, itemsize: int) -> Bill:
    shares = _channels(mixer, shards.ranks)
    work = max(itemsize, 4)
    return travel_bill(shards, shares, batch * 2, work) + back_bill(shards, shares, batch, work)


def _channels(mixer: Mixer, ranks: int) -> Shares:
    return [
        (mixer.frame.dim * r // ranks, mixer.frame.dim * (r + 1) // ranks) for r in range(ranks)
    ]


@parallel(FourierMixing, bill=_fourier_bill)
def mix_fourier(mixer: FourierMixing, x: Tensor, given: Given, world: World) -> Tensor:
    """Channels are transformed where their tokens are, tokens where their channels are."""
    shares, norm = _channels(mixer, world.ranks), mixer.config.norm
    how = "ortho" if norm == "ortho" else "backward"
    work = x.to(torch.promote_types(x.dtype, torch.float32))
    turned = torch.view_as_real(torch.fft.fft(work, norm=how))  # (b, n, c, 2)
    every = torch.view_as_complex(world.to_heads(turned.transpose(1, 2), shares).contiguous())
    lengths = world.lengths(given.valid)
    counts = [world.length] * len(x) if lengths is None else lengths.tolist()
    y = torch.zeros_like(every.real)  # (b, a, N)
    for count in sorted(set(counts)):
        rows = torch.tensor([a for a, each in enumerate(counts) if each == count], device=x.device)
        if count:
            waves = torch.fft.fft(every[rows][..., :count], dim=-1, norm=how).real
            y = y.index_copy(0, rows, torch.nn.functional.pad(waves, (0, world.length - count)))
    y = world.from_heads(tied(y, torch.view_as_real(every))[..., None], shares)[..., 0]
    y = y.transpose(1, 2)
    if x.dtype == torch.float16:
        y = y.clamp(torch.finfo(x.dtype).min, torch.finfo(x.dtype).max)
    return y.to(x.dtype)
