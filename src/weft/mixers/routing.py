"""Routing attention: tokens are led to the nearest of learned centroids and read their cluster.

    q_i = W_qk x_i,   k_j = q_j / ‖q_j‖,   v_j = W_v x_j       (one projection for q and k)
    out_i = mean over clusters c ∋ i of Σ_{j ∈ c, j ≠ i} softmax_j(q_i·k_j / √d) v_j

    bidirectional: cluster c holds the `window` real tokens nearest to μ_c, so clusters are equal in
        size; a token may be in several, and in none: then its output is 0
    causal: a token belongs to its nearest μ_c; each cluster, in order of position, is cut into
        chunks of `window`, and a token reads what stands before it in its chunk and the one before

A token that has nothing else to read reads itself. One cluster and window >= n is dense attention
with shared queries and keys. μ (heads, clusters, d) are unit vectors and no parameters: in training
each forward, after it has used them, moves them towards the mean direction of the tokens nearest to
them, μ ← λμ + (1−λ)·mean. In evaluation nothing moves.

With √n clusters of √n tokens: time O(n^1.5·d), memory O(n^1.5). Decoding keeps every key, value and
cluster number.

Paper: Roy et al. 2020, Routing Transformer, section 4, https://arxiv.org/abs/2003.05997
Differs from it: the published causal form picks the nearest tokens of the whole sequence and then
hides j > i, so membership depends on the future and decoding cannot equal forward; here membership
depends on the token alone. Queries and keys are shared in both directions. All heads route: for
local heads, alternate it with block_local.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import WeftError, at_least
from weft.kernels.dense.reference import expand_heads
from weft.kernels.lsh.buckets import centroid_cosines, move_centroids, nearest_centroids
from weft.kernels.lsh.reformer import attend_latest, attend_layout, chunks_of_buckets
from weft.kernels.lsh.routing import attend_clusters, nearest_tokens
from weft.kernels.lsh.routing_triton import attend_members, members_of
from weft.kernels.lsh.triton import ROUTED, Runs, attend_runs, can_fuse, runs_of_buckets
from weft.layers.across import ALONE, Across
from weft.mixers.base import MIXERS, Frame, State, Traits
from weft.mixers.base.shared import SharedMixer, lengths

ASSUMED_LENGTH = 4096  # sets the clusters where neither they nor a length are given
LOOKBACK = 1  # chunks of its cluster that a causal token reads before its own
FEW = 8  # new tokens up to here gather their keys one by one; more go through forward's chunks


@MIXERS.register("routing")
@dataclass(frozen=True, kw_only=True)
class Routing:
    """Attention inside clusters that online k-means finds."""

    clusters: int | None = None  # centroids per head; None: √length
    window: int | None = None  # tokens per cluster or causal chunk; None: an even share
    decay: float = 0.999  # λ of the moving centroids

    traits: ClassVar[Traits] = Traits(
        family="learned pattern",
        paper="Roy et al. 2020, https://arxiv.org/abs/2003.05997",
        time="n^1.5·d",
        memory="n^1.5",
        context_parallel="tokens to the ranks of their heads and back (all-to-all)",
        state="n·(h·d + g·d + h)",
        causal=True,
        note="queries and keys are the same vectors of one sequence",
    )

    def __post_init__(self) -> None:
        at_least(1, clusters=self.clusters, window=self.window)
        if not 0.0 <= self.decay <= 1.0:
            raise WeftError(f"decay is the share of a centroid that stays; got {self.decay}")

    @staticmethod
    def small() -> Routing:
        """Clusters that some dozens of tokens fill."""
        return Routing(clusters=3, window=6)

    @staticmethod
    def variants() -> tuple[Routing, ...]:
        """A window given, an even share, and a single cluster."""
        return Routing.small(), Routing(clusters=4), Routing(clusters=1, window=8)

    def cluster_count(self, frame: Frame) -> int:
        """Given, or the root of the length."""
        return self.clusters or max(1, round(math.sqrt(frame.length or ASSUMED_LENGTH)))

    def build(self, frame: Frame) -> RoutingAttention:
        return RoutingAttention(self, frame)


@dataclass(kw_only=True)
class RoutingState(State):
    """All keys, values and cluster numbers so far."""

    k: Tensor  # (b, h, t, d)
    v: Tensor  # (b, g, t, d)
    clusters: Tensor  # (b, h, 1, t)


class RoutingAttention(SharedMixer):
    """Shared query-key and value projections around attention inside clusters."""

    centroids: Tensor  # (h, s, d)

    def __init__(self, config: Routing, frame: Frame) -> None:
        super().__init__(config, frame)
        self.across: Across = ALONE
        self.clusters = config.cluster_count(frame)
        even = -(-(frame.length or ASSUMED_LENGTH) // self.clusters)
        self.chunk = config.window or even  # of the causal form
        seeded = torch.Generator().manual_seed(frame.seed * 1_000_003 + frame.layer)
        drawn = torch.randn(frame.heads, self.clusters, frame.head_dim, generator=seeded)
        self.register_buffer("centroids", F.normalize(drawn, dim=-1))  # (h, s, d)

    def mix(
        self,
        x: Tensor,
        valid: Tensor | None,
        context: Tensor | None,
        context_valid: Tensor | None,
    ) -> Tensor:
        """Route, attend inside clusters, and in training move the centroids."""
        length = lengths(x, valid)
        q, v, shared = self.project(x)
        # The fused kernel moves the centroids by the tokens of one device.
        if can_fuse(q, v) and not (self.training and self.across.ranks > 1):
            return self.out(self.fused(q, v, shared, length, padded=valid is not None))
        unit = self.directions(shared)
        y = self.attention(q, self.keys(q), v, self.nearness(unit), length)
        if self.training:
            self.move(unit, length)
        return self.out(y)

    def keys(self, q: Tensor) -> Tensor:
        """(b, h, n, d) -> (b, h, n, d)."""
        return self.directions(q).to(q.dtype)

    def directions(self, x: Tensor) -> Tensor:
        """Unit vectors (b, h, n, d), in float32 at least."""
        return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)

    def heads(self, x: Tensor, start: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k (b, h, n, d), v (b, g, n, d), and the directions (b, h, n, d) that are routed."""
        q, v, shared = self.project(x, start)
        return q, self.keys(q), v, self.directions(shared)

    def route(self, shared: Tensor) -> Tensor:
        """(b, h, n, d) -> the nearest centroid (b, h, 1, n): the causal form's clusters."""
        if can_fuse(shared, kernel=ROUTED):
            return nearest_centroids(shared, self.centroids)[:, :, None]
        return self.nearness(self.directions(shared)).argmax(-1)[:, :, None]

    def fused(self, q: Tensor, v: Tensor, shared: Tensor, length: Tensor, padded: bool) -> Tensor:
        """q, shared (b, h, n, d), v (b, g, n, d), length (b,) -> (b, h, n, d), by our kernels."""
        routing = {"scale": q.shape[-1] ** -0.5, "dropout": self.frame.dropout * self.training}
        if self.frame.causal:
            clusters = self.runs(self.route(shared), length)
            y = attend_runs(q, v, clusters, **routing)
        else:
            nearest, near = centroid_cosines(shared, self.centroids, length)
            size = self.sizes(length) if padded else None
            members = members_of(near, length, size, self.most(q.shape[2]))
            y = attend_members(q, v, members, **routing)
            clusters = self.runs(nearest[:, :, None], length) if self.training else None
        if clusters is not None and self.training:
            move_centroids(shared, self.centroids, clusters, length, self.config.decay)
        return y

    def runs(self, clusters: Tensor, length: Tensor | None = None) -> Runs:
        """Clusters (b, h, 1, n), in order of position, cut into chunks."""
        sizes = {"chunk": self.chunk, "lookback": LOOKBACK}
        return runs_of_buckets(clusters, self.clusters, length, **sizes)

    def nearness(self, unit: Tensor) -> Tensor:
        """Directions (b, h, n, d) -> their products with the centroids (b, h, n, s)."""
        return unit @ self.centroids.to(unit.dtype).transpose(-1, -2)

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, nearness: Tensor, length: Tensor
    ) -> Tensor:
        """q, k (b, h, n, d), v (b, g, n, d), nearness (b, h, n, s), length (b,) -> (b, h, n, d)."""
        v, scale = expand_heads(v, self.frame.heads), self.frame.head_dim**-0.5
        dropout = self.frame.dropout if self.training else 0.0
        if self.frame.causal:
            clusters = nearness.argmax(-1)[:, :, None]  # (b, h, 1, n)
            return self.laid_out(q, k, v, clusters, dropout)
        size, most = self.sizes(length), self.most(q.shape[2])
        tokens, counts = nearest_tokens(nearness, length, size, most)
        return attend_clusters(q, k, v, tokens, counts, scale=scale, dropout=dropout)

    def sizes(self, length: Tensor) -> Tensor:
        """How many tokens a cluster takes in rows of this length (b,)."""
        window = self.config.window
        return -(-length // self.clusters) if window is None else torch.full_like(length, window)

    def most(self, n: int) -> int:
        """The same where all n tokens are real: no cluster takes more."""
        return min(n, self.config.window or -(-n // self.clusters))

    def laid_out(self, q: Tensor, k: Tensor, v: Tensor, clusters: Tensor, dropout: float) -> Tensor:
        """The causal form: q, k, v (b, h, n, d), clusters (b, h, 1, n) -> (b, h, n, d)."""
        size = min(self.chunk, q.shape[2])
        layout = chunks_of_buckets(clusters, self.clusters, size=size, lookback=LOOKBACK)
        return attend_layout(q, k, v, layout, scale=q.shape[-1] ** -0.5, dropout=dropout)

    @torch.no_grad()
    def move(self, unit: Tensor, length: Tensor) -> None:
        """One step of online k-means with directions (b, h, n, d), of which `length` are real."""
        h, s, d = self.centroids.shape
        real = torch.arange(unit.shape[2], device=unit.device) < length[:, None]  # (b, n)
        nearest = self.nearness(unit).argmax(-1)  # (b, h, n)
        place = (nearest + torch.arange(h, device=unit.device)[:, None] * s).flatten()
        weighed = (unit * real[:, None, :, None]).flatten(0, 2)
        total = unit.new_zeros(h * s, d).index_put((place,), weighed, accumulate=True)
        total = self.across.sum(total).view(h, s, d)
        moved = self.config.decay * self.centroids + (1 - self.config.decay) * F.normalize(
            total, dim=-1
        ).to(self.centroids.dtype)
        met = total.abs().amax(-1, keepdim=True) > 0
        self.centroids.copy_(torch.where(met, F.normalize(moved, dim=-1), self.centroids))

    def reference(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
    ) -> Tensor:
        """Cluster by cluster."""
        q, k, v, unit = self.heads(x)
        v, nearness = expand_heads(v, self.frame.heads), self.nearness(unit)
        rows = []
        for row, length in enumerate(lengths(x, valid).tolist()):
            own = [y[row, :, :length] for y in (q, k, v, nearness)]  # (h, _, d), (h, _, s)
            heads = [self._plain_head(*head) for head in zip(*own, strict=True)]
            rows.append(F.pad(torch.stack(heads), (0, 0, 0, x.shape[1] - length)))
        return self.out(torch.stack(rows))

    def _plain_head(self, q: Tensor, k: Tensor, v: Tensor, nearness: Tensor) -> Tensor:
        """One row and head (n, d) without padding."""
        n = len(q)
        total, found = torch.zeros_like(v), v.new_zeros(n, 1)
        for members in self._plain_clusters(nearness):
            reads = torch.zeros(n, n, dtype=torch.bool)
            if self.frame.causal:
                for place, i in enumerate(members):
                    first = max(0, place // self.chunk - LOOKBACK) * self.chunk
                    reads[i, members[first:place]] = True
            else:
                reads[torch.tensor(members)[:, None], torch.tensor(members)] = True
                reads.fill_diagonal_(False)
            inside = torch.zeros(n, dtype=torch.bool)
            inside[members] = True
            alone = (inside & ~reads.any(-1))[:, None] & torch.eye(n, dtype=torch.bool)
            reads = ((reads | alone) | ~inside[:, None]).to(q.device)
            scores = (q @ k.T / q.shape[-1] ** 0.5).masked_fill(~reads, -torch.inf)
            inside = inside.to(q.device)[:, None].to(v.dtype)
            total, found = total + inside * (scores.softmax(-1).to(v.dtype) @ v), found + inside
        return total / found.clamp(min=1) if n else total

    def _plain_clusters(self, nearness: Tensor) -> list[list[int]]:
        """The tokens of each cluster that has some, from nearness (n, s)."""
        n = len(nearness)
        if self.frame.causal:
            nearest = nearness.argmax(-1).tolist()
            found = [[i for i in range(n) if nearest[i] == c] for c in range(self.clusters)]
        else:
            size = self.config.window or -(-n // self.clusters)
            columns = nearness.T.tolist()
            found = [sorted(range(n), key=lambda i, c=c: -c[i])[:size] for c in columns]
        return [members for members in found if members]

    def start(self, batch: int = 1) -> RoutingState:
        """No tokens yet."""
        self._need_causal()
        f, like = self.frame, self.to_v.weight
        return RoutingState(
            k=like.new_zeros(batch, f.heads, 0, f.head_dim),
            v=like.new_zeros(batch, f.kv_heads, 0, f.head_dim),
            clusters=like.new_zeros(batch, f.heads, 1, 0, dtype=torch.long),
        )

    def step(self, x: Tensor, state: RoutingState) -> tuple[Tensor, RoutingState]:
        """Few new tokens look up their clusters; many are laid out together with the past."""
        self._need_causal()
        n = x.shape[1]
        q, v, shared = self.project(x, state.position)
        k, clusters = self.keys(q), self.route(shared)  # (b, h, n, d), (b, h, 1, n)
        grown = RoutingState(
            position=state.position + n,
            k=torch.cat((state.k, k), 2),
            v=torch.cat((state.v, v), 2),
            clusters=torch.cat((state.clusters, clusters), 3),
        )
        values = expand_heads(grown.v, self.frame.heads)
        if n <= FEW:
            sizes = {"size": self.chunk, "lookback": LOOKBACK, "scale": q.shape[-1] ** -0.5}
            y = attend_latest(q, grown.k, values, grown.clusters, **sizes)
        else:
            # Cached positions have no queries: their slots hold keys, whose outputs are unused.
            asks = torch.cat((state.k, q), 2)
            if can_fuse(asks, grown.v):
                runs, past = self.runs(grown.clusters), {"keyed": state.position}
                y = attend_runs(asks, grown.v, runs, scale=q.shape[-1] ** -0.5, **past)
            else:
                y = self.laid_out(asks, grown.k, values, grown.clusters, dropout=0.0)
            y = y[:, :, -n:]
        return self.out(y), grown

    def state_size(self, tokens: int) -> int:
        """A key, a value and the cluster numbers of every token."""
        self._need_causal()
        f = self.frame
        return tokens * (f.heads * (f.head_dim + 1) + f.kv_heads * f.head_dim)
