"""ETC: long tokens read a window and a few global tokens, global tokens read everything.

    s_ij = q_i · (k_j + a_λ(i,j)) / sqrt(d),    out_i = sum_j softmax_j(s_ij) v_j
    long i     over the long j with |i − j| < window, and all global j
    global i   over all j

The leading `global_tokens` are global, the others long. λ(i, j) is the label of a pair: j − i, cut
at ±clip, within a kind; between the kinds "j stands for i", "i stands for j", or neither, as the
mark `member` (b, n) says: the number of the global token that stands for each token, −1 for none.
Long and global queries have label vectors a of their own, for each head.
No global tokens and labels of 0 are a sliding window; a window over all tokens, full attention.
Time O(n (window + globals) c), memory O(n (window + globals)).

Paper: Ainslie et al. 2020, section 3, https://arxiv.org/abs/2004.08483
Differs from it: the projections to q, k and v are shared by all pieces (its code's default), masks
between pieces are full, and any token may be named a member.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import at_least
from weft.kernels.block_sparse.band import in_band, key_runs, skew
from weft.kernels.dense.reference import dense_attention, expand_heads
from weft.kernels.slots import into_blocks
from weft.layers.marks import Mark
from weft.layers.projections.dense import join_heads
from weft.mixers.base import MIXERS, AttentionMixer, Frame, Traits

MEMBER = Mark("member", "number", "the global token that stands for each, −1 for none")
_LEAST_BLOCK = 16  # queries that share a run of keys, at least


@MIXERS.register("etc")
@dataclass(frozen=True, kw_only=True)
class ETC:
    """Global-local attention with relative labels."""

    window: int = 85  # how far a long token reads, itself included
    global_tokens: int = 64  # leading tokens that are global
    clip: int = 12  # distances beyond it share a label
    own_output: bool = True  # global tokens have an output projection of their own

    @property
    def traits(self) -> Traits:
        """Without global tokens `member` means nothing."""
        return Traits(
            family="fixed pattern",
            paper="Ainslie et al. 2020, https://arxiv.org/abs/2004.08483",
            time="n (w + globals) c",
            memory="n (w + globals)",
            context_parallel="keys within the window at each border, global ones to all; global "
            "rows by log-sum-exp",
            note="global tokens read the whole of one sequence, and every token reads them",
            marks=(MEMBER,) if self.global_tokens else (),
        )

    def __post_init__(self) -> None:
        at_least(1, window=self.window)
        at_least(0, global_tokens=self.global_tokens, clip=self.clip)

    def build(self, frame: Frame) -> ETCAttention:
        return ETCAttention(self, frame)

    @classmethod
    def variants(cls) -> tuple[ETC, ...]:
        """Settings that the contract suite tests."""
        return (
            cls(window=6, global_tokens=3, clip=4),
            cls(window=20, global_tokens=0, clip=2, own_output=False),
        )


class ETCAttention(AttentionMixer):
    """Window and global attention under learned labels; `member` (b, n) names who stands for it."""

    def __init__(self, config: ETC, frame: Frame) -> None:
        super().__init__(config, frame)
        self.marks = {MEMBER.name: MEMBER}  # without global tokens it has no effect
        self.refuse_positions("etc distinguishes pairs by its labels")
        shape = (frame.heads, 2 * config.clip + 3, frame.head_dim)
        self.long_labels = nn.Parameter(torch.randn(shape) * 0.02)
        if config.global_tokens:
            self.global_labels = nn.Parameter(torch.randn(shape) * 0.02)
            if config.own_output:
                inner = frame.heads * frame.head_dim
                self.to_out_global = nn.Linear(inner, frame.dim, bias=frame.bias)

    def mark_registers(self, name: str, mark: Tensor, count: int) -> Tensor:
        """No token stands for a register."""
        return mark.new_full((len(mark), count), -1)

    def mix(
        self,
        x: Tensor,
        valid: Tensor | None,
        context: Tensor | None,
        context_valid: Tensor | None,
        member: Tensor | None = None,
    ) -> Tensor:
        """Global rows, then long rows."""
        if member is None:
            member = torch.full_like(x[..., 0], -1, dtype=torch.long)  # (b, n)
        q, k, v = self.heads(x)
        k, v = expand_heads(k, q.shape[1]), expand_heads(v, q.shape[1])
        count = min(self.config.global_tokens, x.shape[1])
        parts = []
        if count:
            rows = self._global_rows(q[:, :, :count], k, v, valid, member)
            to_out = self.to_out_global if self.config.own_output else self.project.to_out
            parts.append(to_out(join_heads(rows)))
        if count < x.shape[1]:
            parts.append(self.project.out(self._long_rows(q, k, v, valid, member, count)))
        return torch.cat(parts, dim=1)

    def _global_rows(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, member: Tensor
    ) -> Tensor:
        """q (b, h, g, d) over all k, v (b, h, n, d)."""
        g, n, clip = q.shape[2], k.shape[2], self.config.clip
        scores = q @ self.global_labels.transpose(-1, -2) * q.shape[-1] ** -0.5  # (b, h, g, labels)
        number = torch.arange(g, device=q.device)
        distance = (number - number[:, None]).clamp(-clip, clip) + clip  # (g, g)
        among = scores.gather(-1, distance.expand(*scores.shape[:2], g, g))
        own = (member[:, None, None, g:] == number[:, None]).expand(-1, 1, g, n - g)
        mine, other = scores[..., -2:-1], scores[..., -1:]
        bias = torch.cat((among, torch.where(own, mine, other)), dim=-1)  # (b, h, g, n)
        seen = None if valid is None else valid[:, None, None, :]
        return self._attend(q, k, v, bias, seen)

    def _long_rows(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, member: Tensor, g: int
    ) -> Tensor:
        """The rows after the first g, blocks of them as rows of the batch: (b, h, n − g, d)."""
        b, n = q.shape[0], q.shape[2]
        reach, clip = self.config.window - 1, self.config.clip
        w = max(_LEAST_BLOCK, reach)
        rows = _as_batch(into_blocks(q[:, :, g:], w))  # (b·u, h, w, d)
        scores = rows @ self.long_labels.transpose(-1, -2) * q.shape[-1] ** -0.5
        offset = torch.arange(-reach, reach + 1, device=q.device).clamp(-clip, clip) + clip
        near = skew(scores.index_select(-1, offset))  # (b·u, h, w, w + 2·reach)
        own = member[:, None, g:, None] == torch.arange(g, device=q.device)
        own = _as_batch(into_blocks(own, w))  # (b·u, 1, w, g)
        far = torch.where(own, scores[..., -2:-1], scores[..., -1:])
        keys, values = (self._around(x, g, w) for x in (k, v))
        real = torch.ones(b, n, dtype=torch.bool, device=q.device) if valid is None else valid
        seen = self._around(real[:, None, :, None], g, w).transpose(-1, -2)
        band = in_band(w, 2 * reach + 1, q.device)  # (w, w + 2·reach)
        seen = seen & torch.cat((band, band.new_ones(w, g)), dim=-1)
        bias = torch.cat((near, far), dim=-1)  # (b·u, h, w, w + 2·reach + g)
        out = self._attend(rows, keys, values, bias, seen)
        return out.unflatten(0, (b, -1)).transpose(1, 2).flatten(2, 3)[:, :, : n - g]

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, seen: Tensor | None) -> Tensor:
        """Torch's fused attention under a bias; a row that sees nothing is padding, reading all."""
        if seen is not None:
            bias = bias.masked_fill(~(seen | ~seen.any(-1, keepdim=True)), float("-inf"))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=self.dropout)

    def _around(self, x: Tensor, g: int, w: int) -> Tensor:
        """For each block of long tokens, those around it and the global ones: (b·u, h, _, d)."""
        reach = self.config.window - 1
        runs = key_runs(x[:, :, g:], w, reach, reach)
        shared = x[:, :, None, :g].expand(-1, -1, runs.shape[2], -1, -1)
        return _as_batch(torch.cat((runs, shared), dim=3))

    def reference(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
        member: Tensor | None = None,
    ) -> Tensor:
        """All pairs: their labels, their scores, one softmax."""
        b, n, _ = x.shape
        g, clip = self.config.global_tokens, self.config.clip
        q, k, v = self.heads(x)
        k = expand_heads(k, q.shape[1])
        i, j = torch.arange(n, device=x.device)[:, None], torch.arange(n, device=x.device)
        member = torch.full((b, n), -1, device=x.device) if member is None else member
        belongs = torch.where(j < g, member[:, :, None] == j, member[:, None, :] == i)  # (b, n, n)
        label = torch.where(belongs, 2 * clip + 1, 2 * clip + 2)
        label = torch.where((i < g) == (j < g), (j - i).clamp(-clip, clip) + clip, label)
        by_label = torch.einsum("bhid,hld->bhil", q, self.long_labels)
        if g:
            by_label = torch.where(
                i < g, torch.einsum("bhid,hld->bhil", q, self.global_labels), by_label
            )
        label = label[:, None].expand(-1, q.shape[1], -1, -1)  # (b, h, n, n)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) + by_label.gather(-1, label)
        seen = ((i - j).abs() < self.config.window) | (i < g) | (j < g)
        seen = seen if valid is None else seen & valid[:, None, None, :]
        # The scores are complete, so they enter as a bias, beside queries of 0.
        added = scores * q.shape[-1] ** -0.5
        out = join_heads(dense_attention(torch.zeros_like(q), k, v, mask=seen, bias=added)[0])
        y = self.project.to_out(out)
        if g and self.config.own_output:
            y = torch.where(i < g, self.to_out_global(out), y)
        return y


def _as_batch(x: Tensor) -> Tensor:
    """Blocks join the batch: (b, h, u, w, d) -> (b·u, h, w, d)."""
    return x.transpose(1, 2).flatten(0, 1)
