"""Swin Transformer: a picture as patches, in stages of ever fewer and wider tokens.

    h_0 = norm(W patch + b)                         patches of `patch` × `patch` pixels
    h ← h + attention(norm(h));  h ← h + mlp(norm(h))      `depths[i]` times in stage i
    h ← W norm(the four tokens of a 2 × 2 square, joined)   between stages: half as high, half as
                                                     wide, twice as many channels
    y = norm(h)

Attention is the mixer [swin]: windows of `window` × `window` tokens with a relative position bias
for each head; in every other block borders are moved by half a window. A stage no larger than a
window is one window, unmoved. Heads pool the last stage's tokens.

A picture is a row of pixels in raster order: numbers (b, height · width, colours), or ids
(b, height · width · colours), levels 0 to vocab − 1 that become −1 to 1. Sizes that patches do not
divide are filled with zeros at the right and below, odd sizes before merging too.
`edges` says what windows at those sides hold: "short" windows have fewer tokens; "padded" ones are
filled with zeros after the norm, which are read, as in the reference code and its checkpoints.

Paper: Liu et al. 2021, section 3, https://arxiv.org/abs/2103.14030
Differs from it: short windows unless edges="padded"; positions may be added to patches, before
their norm (`embedding.positions`); no stochastic depth.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import WeftError, at_least
from weft.feedforward import Dense
from weft.layers.embedding import Embedding
from weft.layers.marks import Marks, refuse_marks
from weft.layers.padding import real_tokens
from weft.mixers import Frame, Swin
from weft.models.registry import MODELS

_UNMARKED = "patches are no tokens of the input; use an Encoder with a mixer that knows"


@MODELS.register("swin_transformer")
@dataclass(frozen=True, kw_only=True)
class SwinTransformer:
    """Windows on patches, merged between stages. The defaults are Swin-T's."""

    embedding: Embedding
    height: int | None = None  # pixels; None: square pictures, by the length of a task
    width: int | None = None
    colours: int = 3  # numbers of a pixel: 3, or 1 where pictures are grey
    patch: int = 4  # pixels on a side of a patch
    channels: int = 96  # of the first stage
    depths: tuple[int, ...] = (2, 2, 6, 2)  # blocks of each stage
    heads: tuple[int, ...] = (3, 6, 12, 24)  # of each stage
    window: int = 7  # tokens on a side of a window
    expansion: float = 4.0  # hidden units of feed-forwards for each channel
    bias: bool = True  # of queries, keys, values and what follows them
    edges: Literal["short", "padded"] = "short"
    dropout: float = 0.0
    eps: float = 1e-5  # of the norms of blocks, and of the last

    def __post_init__(self) -> None:
        if not self.depths or len(self.heads) != len(self.depths):
            raise WeftError(
                "each stage has blocks and heads; got "
                f"depths={list(self.depths)} and heads={list(self.heads)}"
            )
        at_least(1, colours=self.colours, patch=self.patch, window=self.window)
        at_least(1, channels=self.channels, depths=min(self.depths), heads=min(self.heads))
        if (self.height is None) != (self.width is None):
            raise WeftError("give height and width, both or neither (square pictures of a task)")
        used = Embedding(
            vocab=self.embedding.vocab,
            channels=self.embedding.channels,
            positions=self.embedding.positions,
        )
        if self.embedding != used:
            raise WeftError(
                "patches are embedded by one matrix: of an embedding, swin_transformer takes "
                "vocab or channels, and positions; leave its other settings out"
            )
        if self.embedding.channels not in (None, self.colours):
            raise WeftError(
                f"a pixel has colours={self.colours} numbers; got vectors of "
                f"channels={self.embedding.channels}"
            )

    @property
    def dim(self) -> int:
        """Width of the output."""
        return self.channels * 2 ** (len(self.depths) - 1)

    @property
    def mechanism(self) -> str:
        """For a row of results."""
        return f"swin_transformer(window={self.window})"

    def facts(self) -> dict[str, Any]:
        """Layers, width, heads and positions, for a row of results."""
        facts = {"layers": sum(self.depths), "dim": self.dim, "heads": self.heads[-1]}
        return {**facts, "positions": self.embedding.positions}

    def bound(self, inputs: dict[str, Any], length: int) -> SwinTransformer:
        """With the inputs and the picture's size of a task, where they are open."""
        own = {"embedding": dataclasses.replace(self.embedding, **inputs)}
        if self.height is None or self.width is None:
            side = math.isqrt(length // self.colours)
            if side * side * self.colours != length:
                raise WeftError(
                    f"{length} tokens are no square picture of colours={self.colours} numbers a "
                    "pixel; give height= and width=, or other colours="
                )
            return dataclasses.replace(self, **own, height=side, width=side)
        if self.height * self.width * self.colours != length:
            raise WeftError(
                f"pictures of the task are {length} tokens; height={self.height} · "
                f"width={self.width} · colours={self.colours} are "
                f"{self.height * self.width * self.colours}"
            )
        return dataclasses.replace(self, **own)

    def sizes(self) -> list[tuple[int, int]]:
        """Tokens (down, across) of each stage."""
        if self.height is None or self.width is None:
            raise WeftError("swin_transformer needs height= and width= in pixels")
        found = [(-(-self.height // self.patch), -(-self.width // self.patch))]
        for _ in self.depths[1:]:
            found.append((-(-found[-1][0] // 2), -(-found[-1][1] // 2)))
        return found

    def build(self) -> SwinTransformerModule:
        return SwinTransformerModule(self)


class SwinTransformerModule(nn.Module):
    """Pixels (b, n, colours) or ids (b, n · colours) -> the last stage's tokens (b, m, c)."""

    def __init__(self, config: SwinTransformer) -> None:
        super().__init__()
        self.config, sizes = config, config.sizes()
        self.picture = (config.height or 0, config.width or 0, config.colours)  # checked by sizes
        inside = {"vocab": None, "channels": config.patch**2 * config.colours}
        embedding = dataclasses.replace(config.embedding, **inside)
        self.embedding = embedding.build(config.channels, math.prod(sizes[0]))
        self.norm = nn.LayerNorm(config.channels)
        self.dropout = nn.Dropout(config.dropout)
        self.stages = nn.ModuleList(
            SwinStage(config, stage, size) for stage, size in enumerate(sizes)
        )
        self.merges = nn.ModuleList(
            PatchMerging(before, config.channels * 2**stage)
            for stage, (before, _) in enumerate(pairwise(sizes))
        )
        self.last_norm = nn.LayerNorm(config.dim, eps=config.eps)

    def forward(
        self,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        attention_mask: Tensor | None = None,
        marks: Marks | None = None,
    ) -> Tensor:
        """Tokens of the last stage, (b, m, c)."""
        return self.read(x, valid=real_tokens(x, valid, attention_mask), marks=marks)[1]

    def rows_valid(self, valid: Tensor | None) -> None:
        """All of what `read` gives is real."""

    def read(
        self, x: Tensor, *, valid: Tensor | None = None, marks: Marks | None = None
    ) -> tuple[Tensor, Tensor]:
        """No registers (b, 0, c), and the tokens of the last stage (b, m, c)."""
        refuse_marks(marks, _UNMARKED)
        y = self.last_norm(self.states(x, valid)[-1])
        return y[:, :0], y

    def states(self, x: Tensor, valid: Tensor | None = None) -> list[Tensor]:
        """What leaves each stage: (b, down · across, channels), channels doubling."""
        h = self.dropout(self.norm(self.embedding(self.patches(x, valid))))
        found = []
        for place, stage in enumerate(self.stages):
            h = stage(self.merges[place - 1](h) if place else h)
            found.append(h)
        return found

    def patches(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """Each patch's numbers, row by row: (b, m, patch² · colours)."""
        pixels, p = self.pixels(x, valid), self.config.patch
        height, width, _ = self.picture
        pixels = F.pad(pixels, (0, 0, 0, -width % p, 0, -height % p))
        # (b, down, patch, across, patch, colours)
        parts = pixels.unflatten(2, (-1, p)).unflatten(1, (-1, p))
        return parts.transpose(2, 3).flatten(3).flatten(1, 2)

    def pixels(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """(b, height, width, colours), ids scaled to −1 ... 1."""
        height, width, colours = self.picture
        ids = self.config.embedding.vocab
        wanted = (height * width * colours,) if ids else (height * width, colours)
        if tuple(x.shape[1:]) != wanted or x.is_floating_point() == bool(ids):
            kind = "ids" if ids else "numbers"
            raise WeftError(
                f"pictures of {height} × {width} pixels are {kind} (b, "
                f"{', '.join(map(str, wanted))}); got {x.dtype} {tuple(x.shape)}"
            )
        if valid is not None and not bool(valid.all()):
            raise WeftError("pictures of one size have no padding; got places that are not real")
        if ids:
            x = x.to(self.norm.weight.dtype) * (2.0 / max(ids - 1, 1)) - 1.0
        return x.reshape(-1, height, width, colours)


class SwinStage(nn.Module):
    """Blocks on one size of token grid."""

    def __init__(self, config: SwinTransformer, stage: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            SwinBlock(config, stage, size, moved=bool(block % 2))
            for block in range(config.depths[stage])
        )

    def forward(self, h: Tensor) -> Tensor:
        """(b, n, c) -> (b, n, c)."""
        for block in self.blocks:
            h = block(h)
        return h


class SwinBlock(nn.Module):
    """Attention in windows and a feed-forward, norms before both."""

    def __init__(
        self, config: SwinTransformer, stage: int, size: tuple[int, int], *, moved: bool
    ) -> None:
        super().__init__()
        dim, self.size = config.channels * 2**stage, size
        window = min(config.window, *size)
        # Borders stand at half a window, as in the reference code; the mixer counts its shift
        # from the other side.
        shift = window - window // 2 if moved and min(size) > config.window else 0
        filled = config.edges == "padded"
        self.padding = (-size[0] % window, -size[1] % window) if filled else (0, 0)
        mixer = Swin(width=size[1] + self.padding[1], size=window, shift=shift % window)
        frame = Frame(dim=dim, heads=config.heads[stage], dropout=config.dropout, bias=config.bias)
        self.norm = nn.LayerNorm(dim, eps=config.eps)
        self.mixer = mixer.build(frame)
        self.mlp_norm = nn.LayerNorm(dim, eps=config.eps)
        self.feedforward = Dense(expansion=config.expansion).build(dim, config.dropout)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, h: Tensor) -> Tensor:
        """(b, n, c) -> (b, n, c)."""
        h = h + self.dropout(self.attention(self.norm(h)))
        return h + self.dropout(self.feedforward(self.mlp_norm(h)))

    def attention(self, x: Tensor) -> Tensor:
        """(b, n, c) -> (b, n, c), through a picture of whole windows where edges are padded."""
        below, right = self.padding
        if not below and not right:
            return self.mixer(x)
        down, across = self.size
        filled = F.pad(x.unflatten(1, self.size), (0, 0, 0, right, 0, below))
        y = self.mixer(filled.flatten(1, 2)).unflatten(1, filled.shape[1:3])
        return y[:, :down, :across].flatten(1, 2)


class PatchMerging(nn.Module):
    """Tokens of a grid (b, n, c) -> one for each 2 × 2 square, (b, ⌈down/2⌉ · ⌈across/2⌉, 2 c)."""

    def __init__(self, size: tuple[int, int], dim: int) -> None:
        super().__init__()
        self.size = size
        self.norm = nn.LayerNorm(4 * dim)
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        """The four tokens are joined column by column."""
        down, across = self.size
        h = F.pad(h.unflatten(1, self.size), (0, 0, 0, across % 2, 0, down % 2))
        parts = [h[:, row::2, column::2] for column in range(2) for row in range(2)]
        return self.reduction(self.norm(torch.cat(parts, dim=-1).flatten(1, 2)))
