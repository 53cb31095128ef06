"""Sinkhorn attention: blocks of keys are sorted softly, each block reads its own and a sorted one.

    S = Sinkhorn(ψ_u^q · ψ_v^k / (√d·τ)),    K'_u = Σ_v S_uv K_v,    V'_u = Σ_v S_uv V_v
    out_i = softmax over [K'_u ; K_u] of q_i·k / √d, times [V'_u ; V_u],    u = block of i

ψ are means of queries and keys over a block, Sinkhorn divides exp of the scores by column and row
sums in turn, so S comes near a permutation of blocks; S = I is block-local attention. In training
Gumbel noise is added to the scores. Padding enters neither sums nor means: slot t of a sorted block
weighs w = Σ_v S_uv [token t of v is real] times as much as a real key, and nothing if w is 0.

causal: S has entries v < u only, ψ_u^q is the mean of queries up to the first token of block u,
column sums run down the rows, and the first block reads itself alone.
cut = c (SortCut): every token reads the first c sorted blocks and nothing else; bidirectional only.

Time O(n·w·d + n²/w·d), memory O(n·w + (n/w)²), w tokens of a block; cut: time O(n·c·w·d + (n/w)²).
Decoding keeps every key and value, a mean of queries per block, and their sum.

Paper: Tay et al. 2020, Sparse Sinkhorn Attention, sections 3 and 4,
https://arxiv.org/abs/2002.11296
Differs from it: ψ_u·ψ_v scores a pair of blocks instead of a learned map to a fixed number of
blocks, so any length works; causal columns are balanced over earlier rows, as whole ones leak.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import WeftError, at_least
from weft.kernels.dense.reference import expand_heads
from weft.kernels.sinkhorn.triton import balance, causal_balance
from weft.kernels.slots import into_blocks
from weft.mixers.base import MIXERS, AttentionMixer, Frame, State, Traits

NOTHING = 1e-9  # a sorted slot that weighs less holds padding


@MIXERS.register("sinkhorn")
@dataclass(frozen=True, kw_only=True)
class Sinkhorn:
    """Attention to the own block and to a softly sorted one."""

    block: int = 64  # tokens of a block
    iterations: int = 8  # of column and row sums
    temperature: float = 0.75  # τ: lower is closer to a permutation
    noise: bool = True  # Gumbel noise while training
    cut: int | None = None  # SortCut: read this many sorted blocks and no own one

    @property
    def traits(self) -> Traits:
        """SortCut reads blocks from anywhere, so it has no causal form."""
        sorted_only = self.cut is not None
        return Traits(
            family="learned pattern",
            paper="Tay et al. 2020, https://arxiv.org/abs/2002.11296",
            time="n·c·w·d + (n/w)²" if sorted_only else "n·w·d + (n²/w)·d",
            memory="n·c·w + (n/w)²" if sorted_only else "n·w + (n/w)²",
            context_parallel="tokens to the ranks of their heads and back (all-to-all)",
            state=None if sorted_only else "2·n·g·d + (n/block + 2)·h·d",
            causal=not sorted_only,
            note="its sorted blocks come from the whole sequence (cut=None can be causal)"
            if sorted_only
            else "it sorts the blocks of one sequence",
        )

    def __post_init__(self) -> None:
        at_least(1, block=self.block, iterations=self.iterations)
        if self.temperature <= 0:
            raise WeftError(f"temperature is above 0; got temperature={self.temperature}")
        if self.cut is not None and self.cut < 1:
            raise WeftError(f"cut counts sorted blocks, at least 1; got cut={self.cut}")

    @staticmethod
    def small() -> Sinkhorn:
        """Blocks that some dozens of tokens fill."""
        return Sinkhorn(block=8, iterations=3)

    @staticmethod
    def variants() -> tuple[Sinkhorn, ...]:
        """Sorted and own blocks, and SortCut."""
        return Sinkhorn.small(), Sinkhorn(block=5, iterations=2, cut=2)

    def build(self, frame: Frame) -> SinkhornAttention:
        return SinkhornAttention(self, frame)


@dataclass(kw_only=True)
class SinkhornState(State):
    """All keys and values, the query mean of every block, the sum of queries."""

    k: Tensor  # (b, g, t, d)
    v: Tensor  # (b, g, t, d)
    means: Tensor  # (b, h, u, d)
    total: Tensor  # (b, h, d)


class SinkhornAttention(AttentionMixer):
    """Soft sorting of key and value blocks around shared projections."""

    outside_graphs = True

    def __init__(self, config: Sinkhorn, frame: Frame) -> None:
        super().__init__(config, frame)
        self._refuse_bias(
            "a sorted block of sinkhorn mixes keys of many distances, so there is none to bias"
        )

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool
    ) -> Tensor:
        """Sort blocks, then attend within few of them."""
        k, v = expand_heads(k, q.shape[1]), expand_heads(v, q.shape[1])
        if self.frame.causal:
            return self.causal(q, k, v, self.query_means(q, 0, None)[0])
        n, w = q.shape[2], self.config.block
        whole = valid is None and n % w == 0  # rows of S sum to 1, so every slot weighs the same
        real = None if whole else _real_slots(q, valid, w)  # (b, 1, u, w)
        blocks = [into_blocks(x, w) for x in (q, k, v)]
        if real is not None:
            blocks = [x.masked_fill(~real[..., None], 0.0) for x in blocks]
        means_q, means_k = (block_means(x, real) for x in blocks[:2])
        s = self.sorting(means_q, means_k, None if valid is None else real)  # (b, h, u, u)
        s = s if self.config.cut is None else s[:, :, : self.config.cut]
        k, v = mixed(s, blocks[1], blocks[2])  # (b, h, s, w, d)
        bias = None if real is None else _slot_bias(s, real)  # (b, h, s, w)
        if self.config.cut is not None:
            q, k, v = q[:, :, None], k.flatten(2, 3)[:, :, None], v.flatten(2, 3)[:, :, None]
            bias = (
                None if bias is None else bias.flatten(2, 3)[:, :, None, None]
            )  # (b, h, 1, 1, s·w)
            return self.blocks_attend(q, (k,), (v,), bias)[:, :, :n]
        if real is not None and bias is not None:
            own = torch.zeros_like(bias).masked_fill(~(real | ~real.any(-1, True)), -torch.inf)
            bias = torch.cat((bias, own), -1)[:, :, :, None]  # (b, h, u, 1, 2w)
        return self.blocks_attend(blocks[0], (k, blocks[1]), (v, blocks[2]), bias)[:, :, :n]

    def causal(self, q: Tensor, k: Tensor, v: Tensor, means: Tensor, start: int = 0) -> Tensor:
        """q (b, h, n, d) from index `start`; k, v (b, h, t, d) and means (b, h, u, d) from 0."""
        n, w = q.shape[2], self.config.block
        first, lead = start // w, start % w
        k, v = into_blocks(k, w), into_blocks(v, w)  # (b, h, s, w, d)
        exact = torch.promote_types(k.dtype, torch.float32)
        scores = self.scores(means, k.mean(3, dtype=exact))  # (b, h, s, s)
        s = causal_balance(scores, self.config.iterations)[:, :, first:]
        sorted_k, sorted_v = mixed(s, k, v)
        seen = torch.ones(s.shape[2], w, 2 * w, dtype=torch.bool, device=q.device).tril(w)
        if first == 0:
            seen[0, :, :w] = False
        bias = torch.zeros(seen.shape, dtype=q.dtype, device=q.device)
        bias = bias.masked_fill(~seen, -torch.inf)[None, None]  # (1, 1, u, w, 2w)
        q = into_blocks(F.pad(q, (0, 0, lead, 0)) if lead else q, w)
        own_k, own_v = k[:, :, first:], v[:, :, first:]
        y = self.blocks_attend(q, (sorted_k, own_k), (sorted_v, own_v), bias)
        return y[:, :, lead : lead + n]

    def blocks_attend(
        self, q: Tensor, k: tuple[Tensor, ...], v: tuple[Tensor, ...], bias: Tensor | None
    ) -> Tensor:
        """Block by block: q (b, h, u, w, d), parts of k and v (b, h, u, _, d) -> (b, h, n, d).

        Blocks join the batch and heads stay heads, so tensors stored by token are not copied.
        """
        b, _, u = q.shape[:3]
        if bias is not None:
            bias = bias.to(q.dtype).transpose(1, 2).expand(b, u, *(-1,) * 3).flatten(0, 1)
        keys, values = (
            torch.cat([x.transpose(1, 2) for x in parts], 3).flatten(0, 1) for parts in (k, v)
        )
        q = q.transpose(1, 2).flatten(0, 1)  # (_, h, w, d)
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=bias, dropout_p=self.dropout)
        return y.unflatten(0, (b, u)).transpose(1, 2).flatten(2, 3)

    def sorting(self, means_q: Tensor, means_k: Tensor, real: Tensor | None) -> Tensor:
        """Block means (b, h, u, d), real (b, 1, u, w) -> S (b, h, u, u); empty blocks stay."""
        scores = self.scores(means_q, means_k)
        if real is None:
            return balance(scores, self.config.iterations)
        there = real.any(-1)  # (b, 1, u)
        alone = torch.eye(there.shape[-1], dtype=torch.bool, device=there.device)
        allowed = (there[..., None] & there[..., None, :]) | alone  # (b, 1, u, u)
        return balance(scores, self.config.iterations, allowed)

    def scores(self, means_q: Tensor, means_k: Tensor) -> Tensor:
        """ψ^q·ψ^k / (√d·τ), with noise while training: (b, h, u, d) twice -> (b, h, u, u)."""
        scale = means_q.shape[-1] ** -0.5 / self.config.temperature
        scores = (means_q * scale) @ means_k.transpose(-1, -2)  # (b, h, u, u)
        if self.training and self.config.noise:
            draws = torch.empty_like(scores).exponential_().clamp_(min=1e-20)
            scores = torch.sub(scores, draws.log_(), alpha=1 / self.config.temperature)
        return scores

    def query_means(self, q: Tensor, start: int, total: Tensor | None) -> tuple[Tensor, Tensor]:
        """Of all queries up to each block's first among q (b, h, n, d), and the new sum (b, h, d).

        q begins at index `start`, `total` is the sum before it.
        """
        w, work = self.config.block, torch.promote_types(q.dtype, torch.float32)
        lead, index = start % w, torch.arange(start, start + q.shape[2], device=q.device)
        sums = into_blocks(F.pad(q, (0, 0, lead, 0)) if lead else q, w).sum(3, dtype=work)
        end = sums.sum(2) if total is None else sums.sum(2) + total  # (b, h, d)
        before = torch.zeros_like(end) if total is None else total
        sums = torch.cat((before[:, :, None], sums[:, :, :-1]), 2)  # (b, h, u, d)
        sums = sums.mT.contiguous().cumsum(-1).mT  # along memory, which is faster
        first = -start % w
        firsts = q[:, :, first::w]  # (b, h, _, d)
        counts = index[first::w, None] + 1
        return (sums[:, :, bool(lead) :] + firsts) / counts, end

    def plain_attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool
    ) -> Tensor:
        """Row by row over real tokens, block by block."""
        k, v = expand_heads(k, q.shape[1]), expand_heads(v, q.shape[1])
        rows = []
        for row in range(len(q)):
            real = q.shape[2] if valid is None else int(valid[row].sum())
            y = self._plain_row(*(x[row, :, :real] for x in (q, k, v))) if real else v[row, :, :0]
            rows.append(F.pad(y, (0, 0, 0, q.shape[2] - real)))
        return torch.stack(rows)

    def _plain_row(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """One row (h, n, d) without padding."""
        h, n, d = q.shape
        w, causal = self.config.block, self.frame.causal
        spans = [range(a, min(a + w, n)) for a in range(0, n, w)]
        heads = []
        for a in range(h):
            asks = [q[a, : u[0] + 1].mean(0) if causal else q[a, u].mean(0) for u in spans]
            keys = [k[a, u].mean(0) for u in spans]
            scores = torch.stack(asks) @ torch.stack(keys).T / (d**0.5 * self.config.temperature)
            scores = scores.to(torch.promote_types(q.dtype, torch.float32))
            s = _plain_balance(scores, self.config.iterations, causal).to(q.dtype)
            heads.append(self._plain_head(q[a], k[a], v[a], s, spans))
        return torch.stack(heads)

    def _plain_head(self, q: Tensor, k: Tensor, v: Tensor, s: Tensor, spans: list[range]) -> Tensor:
        n, w = len(q), self.config.block
        padded_k, padded_v = (F.pad(x, (0, 0, 0, -n % w)).view(-1, w, x.shape[1]) for x in (k, v))
        weight = s @ F.pad(torch.ones_like(k[:, 0]), (0, -n % w)).view(-1, w)
        mixed_k = torch.einsum("uv,vtd->utd", s, padded_k)
        mixed_v = torch.einsum("uv,vtd->utd", s, padded_v)
        outs = []
        for u, span in enumerate(spans):
            rows = slice(self.config.cut) if self.config.cut else slice(u, u + 1)
            own = range(0) if self.config.cut else span
            keys = torch.cat((mixed_k[rows].flatten(0, 1), k[own]))
            values = torch.cat((mixed_v[rows].flatten(0, 1), v[own]))
            heavy = torch.cat((weight[rows].flatten(), weight.new_ones(len(own))))
            seen = (heavy >= NOTHING).expand(len(span), -1)
            if self.frame.causal:
                seen = seen.tril(len(keys) - len(span))
            scores = q[span] @ keys.T / q.shape[-1] ** 0.5 + heavy.clamp(min=NOTHING).log()
            outs.append(scores.masked_fill(~seen, -torch.inf).softmax(-1).to(v.dtype) @ values)
        return torch.cat(outs)

    def start(self, batch: int = 1) -> SinkhornState:
        """No tokens yet."""
        self._need_causal()
        f, like = self.frame, self.project.to_k.weight
        none = like.new_zeros(batch, f.kv_heads, 0, f.head_dim)
        work = torch.promote_types(like.dtype, torch.float32)
        means = like.new_zeros(batch, f.heads, 0, f.head_dim, dtype=work)
        total = like.new_zeros(batch, f.heads, f.head_dim, dtype=work)
        return SinkhornState(k=none, v=none, means=means, total=total)

    def step(self, x: Tensor, state: SinkhornState) -> tuple[Tensor, State]:
        """Sort all past blocks for the blocks of the new tokens."""
        self._need_causal()
        q, k, v = self.heads(x, start=state.position)
        k, v = torch.cat((state.k, k), dim=2), torch.cat((state.v, v), dim=2)
        means, total = self.query_means(q, state.position, state.total)
        means = torch.cat((state.means, means), dim=2)
        h, start = self.frame.heads, state.position
        y = self.causal(q, expand_heads(k, h), expand_heads(v, h), means, start)
        return self.project.out(y), SinkhornState(
            position=start + x.shape[1], k=k, v=v, means=means, total=total.clone()
        )

    def state_size(self, tokens: int) -> int:
        """A key and a value per token, a mean of queries per block, and their sum."""
        self._need_causal()
        f, blocks = self.frame, -(-tokens // self.config.block)
        return f.head_dim * (2 * f.kv_heads * tokens + f.heads * (blocks + 1))


def block_means(x: Tensor, real: Tensor | None) -> Tensor:
    """(b, h, u, w, d), 0 where real (b, 1, u, w) is False -> their means (b, h, u, d)."""
    work = torch.promote_types(x.dtype, torch.float32)
    if real is None:
        return x.mean(3, dtype=work)
    return x.sum(3, dtype=work) / real.sum(-1).clamp(min=1)[..., None]


def mixed(s: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """S (b, h, s, u) times blocks (b, h, u, w, d) of keys and of values: (b, h, s, w, d) twice."""
    both = torch.stack((k, v), 3)  # (b, h, u, 2, w, d)
    mixed_k, mixed_v = (s.to(k.dtype) @ both.flatten(3)).unflatten(-1, both.shape[3:]).unbind(3)
    return mixed_k, mixed_v


def _real_slots(q: Tensor, valid: Tensor | None, width: int) -> Tensor:
    """Which places of the blocks hold a token: (b, 1, u, w)."""
    real = torch.ones_like(q[:, 0, :, 0], dtype=torch.bool) if valid is None else valid
    # A row of padding alone counts as real, so that it stays finite.
    real = into_blocks((real | ~real.any(1, keepdim=True))[..., None], width)  # (b, u, w, 1)
    return real.squeeze(-1)[:, None]


def _slot_bias(s: Tensor, real: Tensor) -> Tensor:
    """Logarithms of what sorted slots weigh: S (b, h, s, u), real (b, 1, u, w) -> (b, h, s, w)."""
    weight = s @ real.to(s.dtype)
    return weight.clamp(min=NOTHING).log().masked_fill(weight < NOTHING, -torch.inf)


def _plain_balance(scores: Tensor, iterations: int, causal: bool) -> Tensor:
    """Sinkhorn in logarithms (u, u), column by column and row by row."""
    count = len(scores)
    below = torch.ones(count, count, dtype=torch.bool, device=scores.device).tril(-1)
    log = scores.masked_fill(~below, -1e9) if causal else scores
    log = log.log_softmax(-1)
    log = log.masked_fill(~below, -1e9) if causal else log
    for _ in range(iterations):
        if causal:
            log = log - torch.stack([log[: u + 1].logsumexp(0) for u in range(count)])
        else:
            log = log - log.logsumexp(0)
        log = log.masked_fill(~below, -1e9) if causal else log
        log = log - log.logsumexp(1, keepdim=True)
        log = log.masked_fill(~below, -1e9) if causal else log
    return log.exp()
