"""LSH attention (Reformer): tokens are hashed into buckets, sorted by bucket and read in chunks.

    q_i = W_qk x_i,   k_j = q_j / (rms(q_j) √d),   v_j = W_v x_j       (one projection for q and k)
    bucket_r(i) = argmax([q_i R_r, −q_i R_r]),   R_r Gaussian, d × buckets/2, fixed by the seed
    out_i = Σ_r p_r Σ_j∈N_r(i) softmax_j(q_i·k_j) v_j,   p = softmax_r(lse of round r)

    bidirectional: sort the tokens by (bucket, position) and cut the order into chunks; N_r(i) is
        i's chunk with the `lookback` chunks before and `lookahead` chunks after it, wrapping around
    causal: cut each bucket, in order of position, into chunks; N_r(i) is what stands before i in
        its chunk, with the `lookback` chunks before that in the same bucket

A token is never in its own N_r(i): it reads itself only when all its N_r(i) are empty. A key found
in several rounds counts as often. Bidirectional with chunk >= n, and causal with one bucket and
chunk >= n, is dense attention with shared queries and keys; padding is in no chunk.
Time O(rounds·n·(chunk·d + log n)), memory O(rounds·n·chunk); the causal form computes up to one
chunk more per bucket. Decoding caches every key, value and bucket number: any later token may fall
into the same bucket.

Buckets and rotations belong to the module, not to the batch: their number follows `buckets` or
`frame.length`, so neither other rows nor padding move a token to another bucket. Rounding may,
where a token lies on the border of two buckets.

Paper: Kitaev et al. 2020, Reformer, section 2, https://arxiv.org/abs/2001.04451
Differs from it: the published causal form sorts all tokens and then hides j > i, so later tokens
push earlier ones over chunk borders: what row i reads depends on the future, and decoding cannot
equal forward. Here membership depends on earlier tokens alone, at the price of reading the own
bucket only. The published order also runs on from round to round, where a row may list a key twice;
here each round wraps around by itself. `published=True` gives the published form, and no decoding.
The −1e5 by which published code discourages self-attention is exact here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.kernels.dense.reference import expand_heads
from weft.kernels.lsh.buckets import MOST_COLUMNS, hash_tokens
from weft.kernels.lsh.reformer import (
    attend_first,
    attend_latest,
    attend_layout,
    chunks_of_buckets,
    chunks_of_order,
)
from weft.kernels.lsh.triton import (
    HASHED,
    attend_runs,
    can_fuse,
    runs_of_buckets,
    runs_of_order,
)
from weft.kernels.planner.fast import Rule
from weft.mixers.base import MIXERS, Frame, State, Traits
from weft.mixers.base.shared import SharedMixer, lengths

ASSUMED_LENGTH = 4096  # sets the number of buckets where neither they nor a length are given
MOST_AT_ONCE = 128  # more buckets than this are the product of two hashes
FEW = 8  # new tokens up to here gather their keys one by one; more go through forward's chunks
EPS = 1e-6  # added to the mean square of a key


@MIXERS.register("reformer")
@dataclass(frozen=True, kw_only=True)
class Reformer:
    """Attention inside hash buckets, in several rounds."""

    chunk: int = 64  # tokens per chunk
    rounds: int = 4  # independent hashes, merged by their log-sum-exp
    buckets: int | None = None  # 1 or even; None: from frame.length
    lookback: int = 1  # chunks read before the own one
    lookahead: int = 0  # chunks read after it; bidirectional or published only
    published: bool = False  # the paper's order, which cannot decode

    def __post_init__(self) -> None:
        for field, least in (("chunk", 1), ("rounds", 1), ("lookback", 0), ("lookahead", 0)):
            if getattr(self, field) < least:
                raise WeftError(f"{field} is at least {least}; got {field}={getattr(self, field)}")
        if self.buckets is not None:
            factors(self.buckets)

    @property
    def traits(self) -> Traits:
        """Decoding needs chunks that do not depend on later tokens."""
        note = "queries and keys are the same vectors of one sequence"
        if self.published:
            note += ", and the published chunks depend on later tokens (published=False streams)"
        return Traits(
            family="learned pattern",
            paper="Kitaev et al. 2020, https://arxiv.org/abs/2001.04451",
            time="rounds·n·(chunk·d + log n)",
            memory="rounds·n·chunk",
            context_parallel="tokens to the ranks of their heads and back (all-to-all)",
            state=None if self.published else "n·(h·d + g·d + h·rounds)",
            causal=True,
            note=note,
        )

    @staticmethod
    def small() -> Reformer:
        """A size at which some dozens of tokens cross buckets and chunks."""
        return Reformer(chunk=4, rounds=2, buckets=4)

    @staticmethod
    def variants() -> tuple[Reformer, ...]:
        """What the whole contract holds for: not `published`, which does read the future."""
        wide = Reformer(chunk=3, rounds=3, buckets=2, lookback=2)
        return Reformer.small(), wide, Reformer(chunk=8, rounds=1, buckets=1, lookback=0)

    def bucket_count(self, frame: Frame) -> int:
        """Given, or a power of two: half a chunk per bucket, or, streaming, as much as is read."""
        if self.buckets is not None:
            return self.buckets
        streams = frame.causal and not self.published
        tokens = self.chunk * (1 + self.lookback) if streams else self.chunk / 2
        return 2 ** max(0, math.floor(math.log2((frame.length or ASSUMED_LENGTH) / tokens)))

    def build(self, frame: Frame) -> ReformerAttention:
        return ReformerAttention(self, frame)


@dataclass(kw_only=True)
class ReformerState(State):
    """All keys, values and bucket numbers so far."""

    k: Tensor  # (b, h, t, d)
    v: Tensor  # (b, g, t, d)
    buckets: Tensor  # (b, h, r, t)


class ReformerAttention(SharedMixer):
    """Shared query-key and value projections around attention in hash buckets."""

    rotations: Tensor  # (h, r, d, columns)

    def __init__(self, config: Reformer, frame: Frame) -> None:
        super().__init__(config, frame)
        self.streams = frame.causal and not config.published
        if self.streams and config.lookahead:
            raise WeftError(
                f"lookahead reads later tokens, which causal=True forbids; got "
                f"lookahead={config.lookahead}, use lookahead=0"
            )
        self.buckets = config.bucket_count(frame)
        columns = sum(half(factor) for factor in factors(self.buckets))
        seeded = torch.Generator().manual_seed(frame.seed * 1_000_003 + frame.layer)
        shape = (frame.heads, config.rounds, frame.head_dim, columns)
        self.register_buffer("rotations", torch.randn(shape, generator=seeded))  # (h, r, d, ...)

    def mix(
        self,
        x: Tensor,
        valid: Tensor | None,
        context: Tensor | None,
        context_valid: Tensor | None,
    ) -> Tensor:
        """Hash, sort, attend in chunks, merge the rounds."""
        q, v, shared = self.project(x)
        buckets = self.hash(shared)
        length, padded = lengths(x, valid), valid is not None
        if self.fuses(q, v):
            return self.out(self.fused(q, v, buckets, length, padded=padded))
        return self.out(self.attention(q, self.keys(q), v, buckets, length))

    def first_rows(self, x: Tensor, count: int, valid: Tensor | None = None) -> Tensor:
        """All are hashed; the first ones alone attend."""
        config, frame = self.config, self.frame
        if frame.causal or config.published:
            return super().first_rows(x, count, valid)
        q, k, v, buckets = self.heads(x)
        y = attend_first(
            *(q[:, :, :count], k, expand_heads(v, frame.heads)),
            *(buckets, self.buckets, lengths(x, valid)),
            size=config.chunk,
            lookback=config.lookback,
            lookahead=config.lookahead,
            scale=1.0,
            dropout=frame.dropout if self.training else 0.0,
        )
        return self.out(y)

    def keys(self, q: Tensor) -> Tensor:
        """(b, h, n, d) -> (b, h, n, d)."""
        wide = q.to(torch.promote_types(q.dtype, torch.float32))
        norm = (wide.square().mean(-1, keepdim=True) + EPS).rsqrt() * q.shape[-1] ** -0.5
        return (wide * norm).to(q.dtype)

    def heads(self, x: Tensor, start: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k (b, h, n, d), v (b, g, n, d), buckets (b, h, r, n); x begins at index `start`."""
        q, v, shared = self.project(x, start)
        return q, self.keys(q), v, self.hash(shared)

    def hash(self, x: Tensor) -> Tensor:
        """(b, h, n, d) -> bucket numbers (b, h, r, n), by direction alone."""
        columns = self.rotations.shape[-1]
        few = Rule(columns <= MOST_COLUMNS, "takes fewer random directions", columns)
        if can_fuse(x, kernel=HASHED, rules=(few,)):
            return hash_tokens(x, self.rotations, factors(self.buckets))
        work = torch.promote_types(x.dtype, torch.float32)
        turned = x[:, :, None].to(work) @ self.rotations.to(work)  # (b, h, r, n, ...)
        bucket, size = torch.zeros_like(turned[..., 0], dtype=torch.long), 1
        parts = factors(self.buckets)
        for factor, part in zip(parts, turned.split([half(f) for f in parts], -1), strict=True):
            best = part.abs().argmax(-1, keepdim=True)  # (b, h, r, n, 1)
            side = (part.gather(-1, best) < 0) * (factor // 2)
            bucket = bucket + (best + side).squeeze(-1) * size
            size *= factor
        return bucket  # (b, h, r, n)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, buckets: Tensor, length: Tensor) -> Tensor:
        """q, k (b, h, n, d), v (b, g, n, d), buckets (b, h, r, n), length (b,) -> (b, h, n, d)."""
        config, frame = self.config, self.frame
        sizes = {"size": config.chunk, "lookback": config.lookback}
        dropout = frame.dropout if self.training else 0.0
        v = expand_heads(v, frame.heads)
        if self.streams:
            layout = chunks_of_buckets(buckets, self.buckets, **sizes)
        else:
            layout = chunks_of_order(
                buckets,
                self.buckets,
                length,
                **sizes,
                lookahead=config.lookahead,
                causal=frame.causal,
                across_rounds=config.published,
            )
        return attend_layout(q, k, v, layout, scale=1.0, dropout=dropout)

    def fuses(self, q: Tensor, v: Tensor) -> bool:
        """Whether the kernels that gather inside themselves give the same, faster."""
        own = Rule(not self.config.published, "has no published form")
        return can_fuse(q, v, rules=(own,))

    def fused(
        self,
        q: Tensor,
        v: Tensor,
        buckets: Tensor,
        length: Tensor | None,
        *,
        padded: bool = False,
        keyed: int = 0,
    ) -> Tensor:
        """q (b, h, n, d), v (b, g, n, d), buckets (b, h, r, n), length (b,) -> (b, h, n, d)."""
        config, frame = self.config, self.frame
        sizes = {"chunk": config.chunk, "lookback": config.lookback}
        if self.streams:
            runs = runs_of_buckets(buckets, self.buckets, length, **sizes)
        else:
            assert length is not None  # only streaming calls leave it out
            sizes["lookahead"] = config.lookahead
            runs = runs_of_order(buckets, self.buckets, length, **sizes, padded=padded)
        dropout = frame.dropout if self.training else 0.0
        norm = {"eps": EPS * frame.head_dim, "keyed": keyed}
        return attend_runs(q, v, runs, scale=1.0, dropout=dropout, **norm)

    def reference(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
    ) -> Tensor:
        """Count how often i lists j, then out_i = Σ_j count_ij exp(q_i·k_j) v_j, normalised."""
        q, k, v, buckets = self.heads(x)
        counts = torch.zeros(*q.shape[:3], q.shape[2], dtype=q.dtype)
        for row, length in enumerate(lengths(x, valid).tolist()):
            for head in range(self.frame.heads):
                numbers = buckets[row, head, :, :length].tolist()
                self._count(counts[row, head], numbers, length)
        counts = counts.to(x.device)  # (b, h, n, n)
        alone = ~counts.any(-1, keepdim=True)
        counts = torch.where(alone, torch.eye(q.shape[2]).to(counts), counts)
        weights = (q @ k.transpose(-1, -2) + counts.log()).softmax(-1)
        return self.out(weights @ expand_heads(v, self.frame.heads))

    def _count(self, counts: Tensor, buckets: list[list[int]], length: int) -> None:
        """Adds to counts (n, n) each j that i lists, given the buckets of every round."""
        chunk, back, ahead = self.config.chunk, self.config.lookback, self.config.lookahead
        if self.streams:
            for numbers in buckets:
                members: dict[int, list[int]] = {}
                for i, number in enumerate(numbers):
                    earlier = members.setdefault(number, [])
                    counts[i, earlier[max(0, len(earlier) // chunk - back) * chunk :]] += 1
                    earlier.append(i)
            return
        orders = [sorted(range(length), key=lambda i, n=numbers: (n[i], i)) for numbers in buckets]
        cuts = [[o[s : s + chunk] for s in range(0, length, chunk)] for o in orders]
        rings = [[part for cut in cuts for part in cut]] if self.config.published else cuts
        for ring in rings:
            for place, own in enumerate(ring):
                for near in {(place + o) % len(ring) for o in range(-back, ahead + 1)}:
                    counts[torch.tensor(own)[:, None], torch.tensor(ring[near])] += 1
        counts.fill_diagonal_(0)
        if self.frame.causal:
            counts.tril_()

    def start(self, batch: int = 1) -> ReformerState:
        """No tokens yet."""
        if not self.streams:
            raise self._cannot_stream()
        f, like = self.frame, self.to_v.weight
        return ReformerState(
            k=like.new_zeros(batch, f.heads, 0, f.head_dim),
            v=like.new_zeros(batch, f.kv_heads, 0, f.head_dim),
            buckets=like.new_zeros(batch, f.heads, self.config.rounds, 0, dtype=torch.long),
        )

    def step(self, x: Tensor, state: ReformerState) -> tuple[Tensor, ReformerState]:
        """Few new tokens look up their buckets; many are laid out together with the past."""
        if not self.streams:
            raise self._cannot_stream()
        n = x.shape[1]
        q, k, v, buckets = self.heads(x, state.position)
        grown = ReformerState(
            position=state.position + n,
            k=torch.cat((state.k, k), 2),
            v=torch.cat((state.v, v), 2),
            buckets=torch.cat((state.buckets, buckets), 3),
        )
        if n <= FEW:
            y = attend_latest(
                q,
                grown.k,
                expand_heads(grown.v, self.frame.heads),
                grown.buckets,
                size=self.config.chunk,
                lookback=self.config.lookback,
                scale=1.0,
            )
            return self.out(y), grown
        # Cached positions have no queries: their slots hold keys, whose outputs are unused.
        asks = torch.cat((state.k, q), 2)
        if self.fuses(asks, grown.v):
            y = self.fused(asks, grown.v, grown.buckets, None, keyed=state.position)
        else:
            y = self.attention(asks, grown.k, grown.v, grown.buckets, lengths(asks[:, 0], None))
        return self.out(y[:, :, -n:]), grown

    def state_size(self, tokens: int) -> int:
        """A key, a value and the bucket numbers of every token."""
        if not self.streams:
            raise self._cannot_stream()
        f = self.frame
        return tokens * (f.heads * (f.head_dim + self.config.rounds) + f.kv_heads * f.head_dim)


def factors(buckets: int) -> list[int]:
    """The hashes whose product gives this many buckets: one, or two even ones if many."""
    if buckets < 1 or (buckets > 1 and buckets % 2):
        raise WeftError(
            f"a hash separates opposite directions: buckets is 1 or even; got {buckets}"
        )
    if buckets <= MOST_AT_ONCE:
        return [buckets]
    if buckets % 4:
        raise WeftError(
            f"more than {MOST_AT_ONCE} buckets are the product of two even hashes, so they are a "
            f"multiple of 4; got {buckets}"
        )
    root = math.isqrt(buckets)
    low = next(f for f in range(root - root % 2, 0, -2) if buckets % (2 * f) == 0)
    return [low, buckets // low]


def half(factor: int) -> int:
    """Columns of the rotation for a hash of this many values."""
    return max(1, factor // 2)
