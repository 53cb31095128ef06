"""Feature maps: each rank sums its own keys, and reads the sums of the ranks it may read.

    both ways   S = Σ_r S_r, an all-reduce
    causal      S before rank r = Σ_{j < r} S_j, each sent to the ranks after it; where the sum
                forgets, S_j is worth exp(log-decay of the ranks between) less

S is f·(d + 1) numbers a head, whatever the length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.kernels.linear_attention.log_space import NONE, LogSums, log_linear_attention
from weft.kernels.linear_attention.reference import (
    Sums,
    causal_linear_attention,
    elu_features,
)
from weft.mixers.linear_transformer import LinearTransformerAttention
from weft.mixers.performer import TINY, PerformerAttention, products
from weft.mixers.rfa import RFAAttention, weighed
from weft.scale.context.bill import Bill, moved, summed
from weft.scale.context.families.tokens import heads, heads_bill
from weft.scale.context.shards import Shards
from weft.scale.context.split import Given, parallel
from weft.scale.context.world import World, tied


def features_of(mixer: Any) -> int:
    """How many features a head has."""
    if isinstance(mixer, RFAAttention):
        return 2 * mixer.config.features
    return mixer.features if isinstance(mixer, PerformerAttention) else mixer.frame.head_dim


def _bill(mixer: Any, shards: Shards, batch: int, itemsize: int) -> Bill:
    frame, f, work = mixer.frame, features_of(mixer), max(itemsize, 4)
    exponents = isinstance(mixer, PerformerAttention) and mixer.config.kernel == "softmax"
    state = batch * frame.kv_heads * f * (frame.head_dim + 1)
    if frame.causal:
        later = np.triu(np.ones((shards.ranks, shards.ranks), dtype=np.int64), 1)
        if exponents:
            state += batch * frame.kv_heads * f
        if isinstance(mixer, RFAAttention) and mixer.gate is not None:
            state += batch * frame.kv_heads
        sums = moved(later, state, work)
    else:
        sums = summed(shards.ranks, state, work)
        if exponents:
            top = batch * frame.kv_heads * f
            sums = sums + summed(shards.ranks, top, work, learned=False)
    return heads_bill(mixer, shards, batch, itemsize) + sums


@parallel(LinearTransformerAttention, bill=_bill)
def mix_linear(mixer: LinearTransformerAttention, x: Tensor, given: Given, world: World) -> Tensor:
    """elu + 1 of queries and keys."""
    q, k, v, valid = _projected(mixer, x, given, world)
    q, k = elu_features(q), elu_features(k)
    causal = mixer.frame.causal and given.context is None
    return mixer.project.out(over_sums(q, k, v, valid, world, causal, mixer.config.eps, None))


@parallel(PerformerAttention, bill=_bill)
def mix_performer(mixer: PerformerAttention, x: Tensor, given: Given, world: World) -> Tensor:
    """Random features, as they are or as exponents with their largest."""
    q, k, v, valid = _projected(mixer, x, given, world)
    causal = mixer.frame.causal and given.context is None
    if mixer.config.kernel == "relu":
        y = over_sums(mixer.relu(q), mixer.relu(k), v, valid, world, causal, TINY, None)
        return mixer.project.out(y)
    a, c = mixer.exponents(q, k, valid)
    if causal:
        before = _log_sums_before(_log_sums(c, v), world)
        return mixer.project.out(
            log_linear_attention(a, c, v, sums=before, dtype=products(v.dtype))[0]
        )
    top = world.link.largest(c.detach().amax(-2, keepdim=True).clamp(min=NONE))  # (b, g, 1, f)
    of_q = a.unflatten(1, (c.shape[1], -1)) + top[:, :, None]
    of_q = (of_q - of_q.detach().amax(-1, keepdim=True)).exp().flatten(1, 2)
    return mixer.project.out(over_sums(of_q, (c - top).exp(), v, None, world, False, TINY, None))


@parallel(RFAAttention, bill=_bill)
def mix_rfa(mixer: RFAAttention, x: Tensor, given: Given, world: World) -> Tensor:
    """Sines and cosines, with or without gates."""
    q, k, v, valid = _projected(mixer, x, given, world)
    fresh, decay = mixer.gates(x)
    q, k = mixer.features(q), weighed(mixer.features(k), fresh)
    causal, floor = mixer.frame.causal and given.context is None, mixer.config.floor
    return mixer.project.out(over_sums(q, k, v, valid, world, causal, 0.0, floor, decay))


def _projected(
    mixer: Any, x: Tensor, given: Given, world: World
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    if given.context is None:
        return *heads(mixer, x, world), given.valid
    return (*mixer.heads(x, given.context), given.context_valid)


def over_sums(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor | None,
    world: World,
    causal: bool,
    eps: float,
    floor: float | None,
    decay: Tensor | None = None,
) -> Tensor:
    """Features (b, h, n, f) and (b, g, n, f), values (b, g, n, d) -> (b, h, n, d)."""
    if valid is not None:
        hidden = ~valid[:, None, :, None]
        k, v = k.masked_fill(hidden, 0.0), v.masked_fill(hidden, 0.0)
    given = torch.promote_types(q.dtype, v.dtype)
    exact = torch.promote_types(given, torch.float32)
    if causal:
        before = _sums_before(_sums(k, v, decay, exact), decay, world)
        return causal_linear_attention(q, k, v, sums=before, log_decay=decay, eps=eps, floor=floor)[
            0
        ]
    own = _sums(k, v, None, exact)
    total = world.sum(torch.cat((own.values, own.weights[..., None]), dim=-1))
    rows = q.to(exact).unflatten(1, (k.shape[1], -1))  # (b, g, p, n, f)
    read = rows @ total[:, :, None]  # (b, g, p, n, d + 1)
    bottom = read[..., -1:]
    bottom = bottom + eps if floor is None else bottom.clamp(min=floor)
    return (read[..., :-1] / bottom).flatten(1, 2).to(v.dtype)


def _sums(k: Tensor, v: Tensor, decay: Tensor | None, exact: torch.dtype) -> Sums:
    """Of the own keys, as they stand after the last of them."""
    k, v = k.to(exact), v.to(exact)
    if decay is not None:
        since = decay.to(exact).cumsum(-1)  # (b, g, n)
        k = k * (since[..., -1:] - since).exp()[..., None]
    return Sums(k.mT @ v, k.sum(-2))


def _sums_before(own: Sums, decay: Tensor | None, world: World) -> Sums:
    """The sums of all ranks before this one."""
    f = own.values.shape[2]
    parts = [own.values.flatten(2), own.weights]
    if decay is not None:
        parts.append(decay.to(own.values.dtype).sum(-1, keepdim=True))  # (b, g, 1)
    found = world.states(torch.cat(parts, -1), lambda reader, writer: writer < reader)
    tie = found.pop(world.rank)
    total = tied(torch.zeros_like(tie[..., : f * own.values.shape[-1] + f]), tie)
    for rank in sorted(found):
        state = found[rank]
        if decay is not None:
            total, state = total * state[..., -1:].exp(), state[..., :-1]
        total = total + state
    values, weights = total[..., :-f], total[..., -f:]
    return Sums(values.unflatten(-1, (f, -1)), weights)


def _log_sums(c: Tensor, v: Tensor) -> LogSums:
    """Exponents (b, g, n, f) and values (b, g, n, d) -> their sums."""
    top = c.detach().amax(-2, keepdim=True).clamp(min=NONE)
    features = (c - top).exp()
    return LogSums(features.mT @ v.to(c.dtype), features.sum(-2), top.squeeze(-2))


def _log_sums_before(own: LogSums, world: World) -> LogSums:
    """The sums of all ranks before this one, in units of their largest exponents."""
    f = own.top.shape[-1]
    packed = torch.cat((own.values.flatten(2), own.weights, own.top), -1)
    found = world.states(packed, lambda reader, writer: writer < reader)
    tie = found.pop(world.rank)
    states = [found[rank] for rank in sorted(found)]
    if not states:
        zero = tied(torch.zeros_like(own.values), tie)
        return LogSums(zero, torch.zeros_like(own.weights), torch.full_like(own.top, NONE))
    tops = torch.stack([state[..., -f:].detach() for state in states])
    top = tops.amax(0)
    total = sum(
        state[..., :-f] * _worth((one - top).exp(), own.values.shape[-1])
        for state, one in zip(states, tops, strict=True)
    )
    assert isinstance(total, Tensor)
    values, weights = total[..., :-f], total[..., -f:]
    return LogSums(values.unflatten(-1, (f, -1)), weights, top)


def _worth(share: Tensor, width: int) -> Tensor:
    """One factor for each feature (b, g, f) -> for flattened values and weights."""
    return torch.cat((share.repeat_interleave(width, -1), share), -1)
