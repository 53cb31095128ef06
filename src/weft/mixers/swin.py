"""Swin: attention within windows whose borders move from layer to layer, with a relative bias.

    out_i = sum_j softmax_j(q_i · k_j / sqrt(d) + b[y_i − y_j, x_i − x_j]) v_j,   j in i's window
    window of a pixel:   ⌊(y + shift) / size⌋, ⌊(x + shift) / size⌋

The sequence is a picture in raster order, `width` tokens a row, and windows are squares; without a
`width` it is a line, and windows are runs of `size` tokens. shift is 0 in even layers and size // 2
in odd ones. Windows at the edges are smaller; nothing wraps around. b is learned for each head.
A line of at most `size` tokens, or such a picture, unshifted, is full attention with a bias.
Time O(n w c), memory O(n w), w tokens in a window: size², or size on a line.

Paper: Liu et al. 2021, section 3.2, https://arxiv.org/abs/2103.14030
Differs from it: padding is never read (the reference code lets it take part in the softmax), the
last row may be short, windows on a line; merging patches is a matter of the model around it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from weft.errors import WeftError, at_least
from weft.kernels.block_sparse.windows import WindowGrid, attend_windows, from_windows, into_windows
from weft.kernels.dense.reference import dense_attention, expand_heads
from weft.mixers.base import MIXERS, AttentionMixer, Frame, Traits


@MIXERS.register("swin")
@dataclass(frozen=True, kw_only=True)
class Swin:
    """Attention in shifted windows."""

    width: int | None = None  # tokens in a row of the picture; None: a line
    size: int = 7  # side of a window
    shift: int | None = None  # how far borders are moved; None: 0, size // 2, 0, ... by layer

    traits: ClassVar[Traits] = Traits(
        family="fixed pattern",
        paper="Liu et al. 2021, https://arxiv.org/abs/2103.14030",
        time="n w c",
        memory="n w",
        context_parallel="keys of the windows that borders cut",
        note="a token reads its whole window, later tokens too, and windows belong to one picture",
    )

    def __post_init__(self) -> None:
        at_least(1, size=self.size)
        if self.width is not None:
            at_least(1, width=self.width)
        if self.shift is not None and not 0 <= self.shift < self.size:
            raise WeftError(
                f"shift moves borders within a window: 0 ≤ shift < size={self.size}; "
                f"got shift={self.shift}"
            )

    def grid(self, layer: int, n: int) -> WindowGrid:
        """The windows of one layer over n tokens."""
        shift = (layer % 2) * (self.size // 2) if self.shift is None else self.shift
        if self.width is None:
            return WindowGrid(n, (1, self.size), (0, shift))
        # A row that fits one window is not cut.
        return WindowGrid(
            self.width, (self.size, self.size), (shift, shift if self.width > self.size else 0)
        )

    def build(self, frame: Frame) -> SwinAttention:
        return SwinAttention(self, frame)

    @classmethod
    def variants(cls) -> tuple[Swin, ...]:
        """Settings that the contract suite tests."""
        return cls(width=8, size=3, shift=1), cls(size=5)


class SwinAttention(AttentionMixer):
    """Dense attention in every window at once."""

    def __init__(self, config: Swin, frame: Frame) -> None:
        super().__init__(config, frame)
        self.refuse_positions("swin learns a bias for every offset in a window")
        rows = 1 if config.width is None else 2 * config.size - 1
        table = torch.empty(frame.heads, rows, 2 * config.size - 1)
        self.table = nn.Parameter(nn.init.trunc_normal_(table, std=0.02))  # (h, 2M − 1, 2M − 1)

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool
    ) -> Tensor:
        """Cut into windows, attend, put together."""
        n, heads = q.shape[2], q.shape[1]
        grid = self.config.grid(self.frame.layer, n)
        k, v = expand_heads(k, heads), expand_heads(v, heads)
        b, (q, k, v) = q.shape[0], (into_windows(x, grid) for x in (q, k, v))  # (b, u, h, w, d)
        added = self._added(grid, n, valid, q.dtype).expand(b, -1, -1, -1, -1)
        return from_windows(attend_windows(q, k, v, added, self.dropout), grid, n)

    def _added(self, grid: WindowGrid, n: int, valid: Tensor | None, dtype: torch.dtype) -> Tensor:
        """The bias, and −inf at places of a window that hold no token: (1 or b, u, h, w, w)."""
        bias = self.window_bias(grid.size).to(dtype)  # (h, w, w)
        if valid is None:
            valid = torch.ones(1, n, dtype=torch.bool, device=bias.device)
        real = into_windows(valid[:, None, :, None], grid)[:, :, :, None, :, 0]  # (r, u, 1, 1, w)
        # A window without a token reads anything, and stays finite.
        real = real | ~real.any(-1, keepdim=True)
        return torch.where(real, bias, float("-inf"))

    def window_bias(self, size: tuple[int, int]) -> Tensor:
        """b for all pairs of places in a window: (h, w, w)."""
        place = torch.arange(size[0] * size[1], device=self.table.device)
        y, x = place // size[1], place % size[1]
        down, right = y[:, None] - y + size[0] - 1, x[:, None] - x + size[1] - 1
        return self.table[:, down, right]

    def plain_attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool
    ) -> Tensor:
        """The equation under a dense mask, pair by pair of pixels."""
        n, m = q.shape[2], self.config.size
        grid = self.config.grid(self.frame.layer, n)
        index = torch.arange(n, device=q.device)
        y, x = index // grid.width, index % grid.width
        own = torch.stack([(y + grid.shift[0]) // grid.size[0], (x + grid.shift[1]) // m])
        seen = (own[:, :, None] == own[:, None, :]).all(0)  # (n, n)
        down, right = (a[:, None] - a for a in (y, x))
        middle = (self.table.shape[1] // 2, m - 1)
        # Pixels of different windows may be further apart than the table reaches; they are hidden.
        bias = self.table[
            :,
            (down + middle[0]).clamp(0, self.table.shape[1] - 1),
            (right + middle[1]).clamp(0, 2 * m - 2),
        ]
        if valid is not None:
            seen = seen & valid[:, None, None, :]  # (b, 1, n, n)
        return dense_attention(q, k, v, mask=seen, bias=bias)[0]
