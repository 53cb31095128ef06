"""Native sparse attention: compressed, selected and near keys, each read by itself, then gated.

    out_i = g_i^cmp · cmp_i + g_i^slc · slc_i + g_i^win · win_i,    g = sigmoid(W_g x_i), per head
    cmp_i = attention to slots, each made of `span` tokens every `stride`, that end at or before i
    slc_i = attention to the tokens up to i of `selected` blocks of `block` tokens
    win_i = attention to the last `window` tokens, i included

Every branch has keys and values of its own. A block is as important as the weight that cmp_i gives
to the strips of `stride` tokens in it, summed over the query heads that share a key head, so they
choose together; the first block, the own and the one before it are always chosen, and of equals
the earlier one. The choice has no gradient. With no slot to read yet, cmp is 0. All blocks selected
is dense causal attention, gates (0, 0, 1) are a sliding window. Rotary positions turn queries and
keys of slc and win, not of cmp.

Time O(n·(n/stride + selected·block + window)·d), memory O(n·selected·(d + block) + n²/stride); on
a GPU in half precision every branch is fused, and memory is O(n·selected·d).
Decoding keeps keys and values of slc, the slots, and the last tokens of cmp and win.

Paper: Yuan et al. 2025, Native Sparse Attention, section 3, https://arxiv.org/abs/2502.11089
Differs from it: selected blocks are read through sorted pairs of queries and blocks, so that a
product has as many rows as queries chose a block, and not only the heads that share its keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import Unsupported, WeftError
from weft.kernels.attend.api import attend
from weft.kernels.dense.reference import dense_attention, expand_heads
from weft.kernels.nsa.gates import gated_sum
from weft.kernels.nsa.heads import can_join, joint_heads
from weft.kernels.nsa.importance import can_choose, choose_blocks
from weft.kernels.nsa.reference import attend_selected
from weft.kernels.nsa.slots import attend_slots
from weft.layers.overlap import OverlapCompression, OverlapKind
from weft.layers.positions import build_positions
from weft.layers.projections.dense import split_heads
from weft.mixers.base import MIXERS, Frame, Mixer, State, Traits
from weft.patterns import Causal, Sliding

NEAR = 2  # blocks that are always chosen: the own one and those before it
AT_ONCE = 2**26  # scores of slots that are looked at together when blocks are chosen
Pair = tuple[Tensor, Tensor]  # keys and values


@MIXERS.register("nsa")
@dataclass(frozen=True, kw_only=True)
class NSA:
    """Compressed, selected and near keys, joined by gates."""

    span: int = 32  # tokens of a compressed slot
    stride: int = 16  # tokens from slot to slot
    block: int = 64  # tokens of a selected block
    selected: int = 16  # blocks read by a query, the first and the two nearest included
    window: int = 512  # nearest tokens read, the own one included
    compress: OverlapKind = "mlp"  # mean: without parameters

    traits: ClassVar[Traits] = Traits(
        family="learned pattern",
        paper="Yuan et al. 2025, https://arxiv.org/abs/2502.11089",
        time="n·(n/stride + selected·block + window)·d",
        memory="n·selected·(d + block) + n²/stride",
        context_parallel="tokens to the ranks of their heads and back (all-to-all)",
        state="2·g·d·(n + n/stride + window + span)",
        causal=True,
        bidirectional=False,
        compiles=False,
        note="it is defined by the past of each token of one sequence; its window is planned "
        "outside the graph",
        tensor="its gates of all heads are rows of one matrix",
    )

    def __post_init__(self) -> None:
        for field, least in (("stride", 1), ("selected", 1 + NEAR), ("window", 1)):
            if getattr(self, field) < least:
                raise WeftError(f"{field} is at least {least}; got {field}={getattr(self, field)}")
        if self.span % self.stride or self.block % self.stride or not 1 <= self.span <= self.block:
            raise WeftError(
                f"span and block are multiples of stride, and a slot fits into a block; got "
                f"span={self.span}, stride={self.stride}, block={self.block}"
            )

    @staticmethod
    def small() -> NSA:
        """A size at which some dozens of tokens choose between blocks."""
        return NSA(span=8, stride=4, block=8, selected=4, window=6)

    @staticmethod
    def variants() -> tuple[NSA, ...]:
        """Both compressions."""
        return NSA.small(), NSA(span=3, stride=3, block=6, selected=3, window=5, compress="mean")

    def build(self, frame: Frame) -> NSAAttention:
        return NSAAttention(self, frame)


@dataclass(kw_only=True)
class NSAState(State):
    """Keys, then values along the head axis, of each branch as far as later tokens need them."""

    selected: Tensor  # (b, 2g, t, d)
    slots: Tensor  # (b, 2g, s, d)
    open: Tensor  # (b, 2g, r, d), tokens of slots that are not full
    near: Tensor  # (b, 2g, w, d)


class NSAAttention(Mixer):
    """One set of queries, three of keys and values, and gates."""

    outside_graphs = True

    def __init__(self, config: NSA, frame: Frame) -> None:
        super().__init__(config, frame)
        self.positions = build_positions(frame.positions, frame.heads, frame.head_dim)
        if self.positions.biased:
            raise Unsupported(
                f"a slot of nsa stands for tokens of many distances, so there is none to bias; "
                f"got positions={frame.positions}; use positions=rope"
            )
        width, shared = frame.heads * frame.head_dim, frame.kv_heads * frame.head_dim
        self.to_q = nn.Linear(frame.dim, width, bias=frame.bias)
        self.to_kv = nn.Linear(frame.dim, 6 * shared, bias=frame.bias)
        self.to_gates = nn.Linear(frame.dim, 3 * frame.heads)
        self.to_out = nn.Linear(width, frame.dim, bias=frame.bias)
        sizes = (config.compress, config.span, config.stride, frame.head_dim)
        self.compress_k, self.compress_v = OverlapCompression(*sizes), OverlapCompression(*sizes)
        self.window = Causal() & Sliding(config.window)

    def mix(
        self,
        x: Tensor,
        valid: Tensor | None,
        context: Tensor | None,
        context_valid: Tensor | None,
    ) -> Tensor:
        """Three branches and their gates; padding comes last, where no real token reads it."""
        q, turned, compressed, selected, near = self.heads(x)
        branches = self.branches(q, turned, self.compress(compressed), selected, near)
        return self.out(x, branches)

    def heads(self, x: Tensor, start: int = 0) -> tuple[Tensor, Tensor, Pair, Pair, Pair]:
        """q and q with positions (b, h, n, d), then keys and values (b, g, n, d) per branch."""
        index = torch.arange(start, start + x.shape[1], device=x.device)
        q, turned, k, v, *rest = self.project(x)
        turned, selected, near = (
            self.positions.rotate(y, index) for y in (turned, rest[0], rest[2])
        )
        return q, turned, (k, v), (selected, rest[1]), (near, rest[3])

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """x (b, n, c) -> q twice (b, h, n, d), then k, v of each branch (b, g, n, d)."""
        f, to_q, to_kv = self.frame, self.to_q, self.to_kv
        if can_join(x, f.head_dim):
            biases = (to_q.bias, to_kv.bias) if f.bias else None
            return joint_heads(x, (to_q.weight, to_kv.weight), biases, f.heads, f.kv_heads)
        q = split_heads(to_q(x), f.heads)
        return q, q, *(split_heads(part, f.kv_heads) for part in to_kv(x).chunk(6, dim=-1))

    def compress(self, tokens: Pair) -> Pair:
        """(b, g, m, d) -> slots (b, g, s, d), keys and values."""
        return self.compress_k(tokens[0]), self.compress_v(tokens[1])

    def branches(
        self,
        q: Tensor,
        turned: Tensor,
        slots: Pair,
        selected: Pair,
        near: Pair,
        start: int = 0,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """cmp, slc and win (b, h, n, d) for queries from index `start`; the keys end with them."""
        config, dropout = self.config, self.frame.dropout if self.training else 0.0
        cmp, chosen = self.look(q, slots, start, selected[0].shape[2], dropout)
        sizes = {"block": config.block, "start": start, "dropout": dropout}
        slc = attend_selected(turned, *selected, chosen, **sizes)
        win = attend(turned, *near, self.window, dropout=dropout)
        return cmp, slc, win

    def look(
        self, q: Tensor, slots: Pair, start: int, tokens: int, dropout: float
    ) -> tuple[Tensor, Tensor]:
        """cmp (b, h, n, d) from slots (b, g, s, d), and the blocks (b, g, n, blocks read)."""
        (k, v), config = slots, self.config
        if not can_choose(q, k, -(-tokens // config.block), start):
            cmp = self.read_slots(q, k, v, start, dropout)
            return cmp, self.choose(q.detach(), k.detach(), start, tokens)
        cmp, lse = attend_slots(q, k, v, span=config.span, stride=config.stride, dropout=dropout)
        return cmp, choose_blocks(
            q,
            k,
            lse,
            block=config.block,
            each=config.block // config.stride,
            shares=config.span // config.stride,
            selected=config.selected,
            near=NEAR,
        )

    def read_slots(self, q: Tensor, k: Tensor, v: Tensor, start: int, dropout: float) -> Tensor:
        """q (b, h, n, d) to the slots (b, g, s, d) that have ended -> (b, h, n, d), 0 if none."""
        if not k.shape[2]:
            return torch.zeros_like(q)
        seen = self.ended(start, q.shape[2], k.shape[2], q.device)  # (n, s)
        some = seen.any(-1, keepdim=True)  # (n, 1)
        k, v = expand_heads(k, q.shape[1]), expand_heads(v, q.shape[1])
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen | ~some, dropout_p=dropout)
        return y.masked_fill(~some, 0.0)

    def ended(self, start: int, n: int, slots: int, device: torch.device) -> Tensor:
        """Which slots end at or before each query: (n, slots)."""
        index = torch.arange(start, start + n, device=device)[:, None]
        last = torch.arange(slots, device=device) * self.config.stride + self.config.span - 1
        return last <= index

    @torch.no_grad()
    def choose(self, q: Tensor, k: Tensor, start: int, tokens: int) -> Tensor:
        """Queries (b, h, n, d), slot keys (b, g, s, d) -> block numbers (b, g, n, blocks read)."""
        rows = max(1, AT_ONCE // max(1, len(q) * q.shape[1] * k.shape[2]))
        parts = q.split(rows, dim=2)
        found = [self._choose(part, k, start + at * rows, tokens) for at, part in enumerate(parts)]
        return torch.cat(found, dim=2)

    def _choose(self, q: Tensor, k: Tensor, start: int, tokens: int) -> Tensor:
        block, n = self.config.block, q.shape[2]
        count = -(-tokens // block)
        index = torch.arange(start, start + n, device=q.device)[:, None]  # (n, 1)
        blocks = torch.arange(count, device=q.device)
        away = index // block - blocks  # (n, count)
        weight = self.importance(q, k, start, count)  # (b, g, n, count)
        weight = weight.masked_fill((blocks == 0) | (away < NEAR), torch.inf)
        weight = weight.masked_fill(away < 0, -torch.inf)
        taken = min(self.config.selected, count)
        best, chosen = weight.topk(taken, dim=-1)
        # A slot across two blocks makes them equally important; topk leaves open which comes first.
        ranked = weight.argsort(dim=-1, descending=True, stable=True)[..., :taken]
        chosen = torch.where(best.isinf(), chosen, ranked)
        return chosen.masked_fill(best.isneginf(), count)

    def importance(self, q: Tensor, k: Tensor, start: int, count: int) -> Tensor:
        """The weight of cmp on each block, summed over heads that share keys: (b, g, n, count)."""
        config, (g, slots) = self.config, k.shape[1:3]
        work = torch.promote_types(q.dtype, torch.float32)
        if not slots:
            return q.new_zeros(len(q), g, q.shape[2], count, dtype=work)
        seen = self.ended(start, q.shape[2], slots, q.device)
        q, k = q.to(work) * q.shape[-1] ** -0.5, expand_heads(k, q.shape[1]).to(work)
        scores = q @ k.transpose(-1, -2)  # (b, h, n, s)
        weights = scores.masked_fill(~(seen | ~seen.any(-1, True)), -torch.inf).softmax(-1)
        weights = weights.masked_fill(~seen, 0.0).unflatten(1, (g, -1)).sum(2)  # (b, g, n, s)
        # A slot covers some strips of `stride` tokens, a block holds others.
        shares = config.span // config.stride
        padded = F.pad(weights, (shares - 1, shares - 1))
        shifted = [padded[..., at : at + slots + shares - 1] for at in range(shares)]
        strips = sum(shifted[1:], shifted[0])
        each = config.block // config.stride
        strips = F.pad(strips, (0, max(0, count * each - strips.shape[-1])))[..., : count * each]
        return strips.unflatten(-1, (count, each)).sum(-1)

    def out(self, x: Tensor, branches: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Gates of x (b, n, c) times the branches (b, h, n, d) -> (b, n, c)."""
        return self.to_out(gated_sum(self.to_gates(x), branches))

    def reference(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
    ) -> Tensor:
        """Dense attention under a mask in every branch."""
        n, config = x.shape[1], self.config
        q, turned, compressed, selected, near = self.heads(x)
        k, v = self.compress(compressed)
        i, j = torch.arange(n, device=x.device)[:, None], torch.arange(n, device=x.device)
        ends = torch.arange(k.shape[2], device=x.device) * config.stride + config.span - 1
        cmp = dense_attention(q, k, v, mask=ends <= i)[0] if k.shape[2] else torch.zeros_like(q)
        seen = self._plain_choice(q.detach(), k.detach())  # (b, h, n, n)
        slc = dense_attention(turned, *selected, mask=seen & (j <= i))[0]
        close = (j <= i) & (i - j < config.window)
        return self.out(x, (cmp, slc, dense_attention(turned, *near, mask=close)[0]))

    def _plain_choice(self, q: Tensor, k: Tensor) -> Tensor:
        """Which keys each query's blocks hold (b, h, n, n), slot by slot and block by block."""
        config, (b, h, n, d) = self.config, q.shape
        g, each, shares = k.shape[1], config.block // config.stride, config.span // config.stride
        work = torch.promote_types(q.dtype, torch.float32)
        scores = q.to(work) @ expand_heads(k, h).to(work).transpose(-1, -2) / d**0.5
        seen = torch.zeros(b, h, n, n, dtype=torch.bool)
        count = -(-n // config.block)
        overlap = torch.zeros(k.shape[2], count).to(scores)
        for t in range(k.shape[2]):
            for strip in range(t, t + shares):
                overlap[t, strip // each] += 1
        for i in range(n):
            slots = min(max(0, (i - config.span + 1) // config.stride + 1), k.shape[2])
            weight = scores[:, :, i, :slots].softmax(-1) @ overlap[:slots]  # (b, h, count)
            weight = weight.unflatten(1, (g, -1)).sum(2).tolist()
            own = i // config.block
            always = {0, own, max(0, own - 1)}
            for row in range(b):
                for head in range(g):
                    rest = sorted(set(range(own + 1)) - always, key=lambda u: -weight[row][head][u])
                    for u in [*always, *rest[: config.selected - len(always)]]:
                        heads = slice(head * (h // g), (head + 1) * (h // g))
                        seen[row, heads, i, u * config.block : (u + 1) * config.block] = True
        return seen.to(q.device)

    def start(self, batch: int = 1) -> NSAState:
        """No tokens yet."""
        f = self.frame
        none = self.to_kv.weight.new_zeros(batch, 2 * f.kv_heads, 0, f.head_dim)
        return NSAState(selected=none, slots=none, open=none, near=none)

    def step(self, x: Tensor, state: NSAState) -> tuple[Tensor, NSAState]:
        """New slots from the open tokens, then the three branches."""
        q, turned, *new = self.heads(x, state.position)
        now = state.position + x.shape[1]
        old = (state.open, state.selected, state.near)
        compressed, selected, near = (
            torch.cat((kept, torch.cat(pair, 1)), 2) for kept, pair in zip(old, new, strict=True)
        )
        slots = torch.cat(self.compress(_keys_values(compressed)), 1)
        slots = torch.cat((state.slots, slots), 2)
        read_slots, read_selected, read_near = map(_keys_values, (slots, selected, near))
        branches = self.branches(q, turned, read_slots, read_selected, read_near, state.position)
        y = self.out(x, branches)
        still = now - slots.shape[2] * self.config.stride
        kept = min(now, self.config.window - 1)
        return y, NSAState(
            position=now,
            selected=selected,
            slots=slots,
            open=compressed[:, :, compressed.shape[2] - still :].clone(),
            near=near[:, :, near.shape[2] - kept :].clone(),
        )

    def state_size(self, tokens: int) -> int:
        """All selected keys, the slots, the tokens of slots that are not full, the window."""
        slots = self.compress_k.slots(tokens)
        still = tokens - slots * self.config.stride
        near = min(tokens, self.config.window - 1)
        return 2 * self.frame.kv_heads * self.frame.head_dim * (tokens + slots + still + near)


def _keys_values(both: Tensor) -> Pair:
    """(b, 2g, m, d) -> keys and values (b, g, m, d)."""
    k, v = both.chunk(2, 1)
    return k, v
