"""One sequence over the ranks of a group, as a mechanism sees it: what it can ask of the others.

    fetch     keys at the positions that each rank names
    near      the tokens before and after the own ones (a halo)
    every     all tokens, in order
    states    one summary of each rank, sent to the ranks that read it
    sum       slots or sums over all ranks
    merged    softmax over keys that are spread over the ranks, joined by log-sum-exp
    to_heads  all tokens of some heads instead of some tokens of all heads

Tensors hold the tokens of the own shard along their last axis but one, and no others: shards
differ in length by one token at most. Every rank makes the same calls in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from weft.errors import Unsupported
from weft.patterns.region import Ints
from weft.scale.context.exchange import Exchange
from weft.scale.context.shards import Shards


@dataclass(frozen=True, eq=False)
class World:
    """The shards of one sequence, and the exchange between the ranks that hold them."""

    shards: Shards
    link: Exchange

    @property
    def rank(self) -> int:
        """The own number in the group."""
        return self.link.rank

    @property
    def ranks(self) -> int:
        """How many share the sequence."""
        return self.link.ranks

    @property
    def length(self) -> int:
        """Tokens of the whole sequence."""
        return self.shards.length

    @property
    def start(self) -> int:
        """The position of the first own token."""
        return self.shards.start(self.rank)

    @property
    def count(self) -> int:
        """How many tokens are here."""
        return self.shards.count(self.rank)

    @property
    def end(self) -> int:
        """The position after the last own token, where they are contiguous."""
        return self.start + self.count

    @cached_property
    def positions(self) -> Tensor:
        """The positions of the own tokens (n,)."""
        return torch.as_tensor(self.shards.positions(self.rank))

    def need_contiguous(self, name: str) -> None:
        """Refuse shards of several runs where a mechanism follows the order of tokens."""
        if not self.shards.contiguous:
            raise Unsupported(
                f"{name} follows the order of tokens, so its shards are contiguous; "
                f"got balance={self.shards.balance!r}, use balance='none'"
            )

    def fetch(self, x: Tensor, needs: Sequence[Ints]) -> Tensor:
        """x (..., n, d) at the positions each rank needs, none of its own: those of this rank.

        They come by rank; for contiguous shards that is their order.
        """
        shards, receives = self.shards, np.zeros(self.ranks, dtype=np.int64)
        sends: list[Tensor | None] = []
        for rank, keys in enumerate(needs):
            owner = shards.owners(keys)
            if rank == self.rank:
                receives = np.bincount(owner, minlength=self.ranks)
            own = keys[owner == self.rank]
            sends.append(torch.as_tensor(shards.places(own, self.rank)) if len(own) else None)
        return self.link.move(x, sends, receives.tolist())

    def fetched(self, needs: Ints) -> Ints:
        """The positions of what `fetch` gives for these needs, in its order."""
        return needs[np.argsort(self.shards.owners(needs), kind="stable")]

    def around(self, x: Tensor, ranges: Sequence[tuple[int, int]]) -> Tensor:
        """x (..., n, d) -> the tokens first..end − 1 of the range of this rank, around its own."""
        needs = [outside(self.shards, rank, *each) for rank, each in enumerate(ranges)]
        came = self.fetch(x, needs)
        before = int((needs[self.rank] < self.start).sum())
        return torch.cat((came[..., :before, :], x, came[..., before:, :]), dim=-2)

    def near(self, x: Tensor, before: int, after: int) -> tuple[Tensor, int]:
        """The own tokens with up to so many before and after, and how many come before."""
        ranges = halo(self.shards, before, after)
        return self.around(x, ranges), self.start - ranges[self.rank][0]

    def every(self, x: Tensor) -> Tensor:
        """All tokens, in the order of the sequence."""
        return self.around(x, [(0, self.length)] * self.ranks)

    def until_here(self, x: Tensor) -> Tensor:
        """The own tokens and all before them."""
        return self.around(x, [(0, self.shards.edges[r + 1]) for r in range(self.ranks)])

    def states(self, x: Tensor, reads: Callable[[int, int], bool]) -> dict[int, Tensor]:
        """The tensor of each rank whose tensor this one reads: reads(reader, writer)."""
        one, none = torch.zeros(1, dtype=torch.long), None
        others = [rank for rank in range(self.ranks) if rank != self.rank]
        sends = [
            one if rank in others and reads(rank, self.rank) else none for rank in range(self.ranks)
        ]
        receives = [int(rank in others and reads(self.rank, rank)) for rank in range(self.ranks)]
        came = self.link.move(x.reshape(1, -1), sends, receives)
        found = [rank for rank, count in enumerate(receives) if count]
        # A rank that reads nothing still takes part in the backward pass.
        self_tied = tied(x, came)
        return {rank: came[a].view_as(x) for a, rank in enumerate(found)} | {self.rank: self_tied}

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all ranks."""
        return self.link.sum(x)

    def merged(self, out: Tensor, lse: Tensor) -> Tensor:
        """Values (..., n, d) and log-sum-exp (..., n) over the keys of each rank -> over all."""
        top = self.link.largest(lse)
        top = top.masked_fill(top == float("-inf"), 0.0)
        # Of a rank without keys both value and weight are 0.
        dead = lse == float("-inf")
        weight = (lse.masked_fill(dead, 0.0) - top).exp().masked_fill(dead, 0.0)[..., None]
        total = self.sum(torch.cat((out.to(weight.dtype) * weight, weight), dim=-1))
        values, weight = total[..., :-1], total[..., -1:]
        return (values / weight.masked_fill(weight == 0.0, 1.0)).to(out.dtype)

    def lengths(self, valid: Tensor | None) -> Tensor | None:
        """How many real tokens each row has on all ranks, from the own ones (b, n): (b,)."""
        if valid is None:
            return None
        mine = valid.sum(1)  # (b,)
        return torch.stack(list(self.states(mine, lambda *_: True).values())).sum(0)

    def shares(self, count: int) -> list[tuple[int, int]]:
        """So many heads shared out over the ranks: the first and the end for each."""
        return [(count * r // self.ranks, count * (r + 1) // self.ranks) for r in range(self.ranks)]

    def to_heads(self, x: Tensor, shares: Sequence[tuple[int, int]]) -> Tensor:
        """Own tokens of all heads (b, h, n, d) -> all tokens of the own heads (b, a, N, d)."""
        heads = x.transpose(1, 2)  # (b, n, h, d)
        n, own = self.count, shares[self.rank][1] - shares[self.rank][0]
        flat = heads.flatten(1, 2)  # (b, n·h, d)
        index = torch.arange(flat.shape[1]).view(n, -1)  # (n, h)
        sends: list[Tensor | None] = [index[:, a:b].flatten() for a, b in shares]
        receives = [self.shards.count(rank) * own for rank in range(self.ranks)]
        came = self.link.move(flat, sends, receives)  # (b, N·a, d)
        return came.reshape(len(x), self.length, own, x.shape[-1]).transpose(1, 2)

    def from_heads(self, x: Tensor, shares: Sequence[tuple[int, int]]) -> Tensor:
        """Undo `to_heads`: (b, a, N, d) -> (b, h, n, d)."""
        own = x.shape[1]
        flat = x.transpose(1, 2).flatten(1, 2)  # (b, N·a, d)
        index = torch.arange(flat.shape[1]).view(self.length, own)  # (N, a)
        edges = self.shards.edges
        sends: list[Tensor | None] = [
            index[edges[r] : edges[r + 1]].flatten() for r in range(self.ranks)
        ]
        receives = [self.count * (b - a) for a, b in shares]
        came = self.link.move(flat, sends, receives)  # by rank: (b, n·a, d) each
        parts = [
            part.reshape(len(x), self.count, b - a, x.shape[-1])
            for part, (a, b) in zip(came.split(receives, 1), shares, strict=True)
        ]
        return torch.cat(parts, 2).transpose(1, 2)


def tied(y: Tensor, *others: Tensor) -> Tensor:
    """y, which now depends on the others too: their exchanges run backwards on every rank."""
    for other in others:
        y = y + other.flatten()[:0].sum().to(y.dtype)
    return y


def outside(shards: Shards, rank: int, first: int, end: int) -> Ints:
    """Positions first..end − 1 that a rank does not hold."""
    wanted = np.arange(first, end)
    return wanted[shards.owners(wanted) != rank] if len(wanted) else wanted


def halo(shards: Shards, before: int, after: int) -> list[tuple[int, int]]:
    """For each rank its own tokens and so many around them, within the sequence."""
    edges = shards.edges
    return [
        (max(0, int(edges[r]) - before), min(shards.length, int(edges[r + 1]) + after))
        for r in range(shards.ranks)
    ]
