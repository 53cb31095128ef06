"""Positions inside attention: rotary (RoPE, also in 2D), ALiBi and T5's relative bias.

RoPE turns each pair of channels of q and k by an angle proportional to the position, so that their
product depends on the distance alone (Su et al. 2021, https://arxiv.org/abs/2104.09864). ALiBi
subtracts m_a·|i − j| from the scores of head a (Press et al. 2021, https://arxiv.org/abs/2108.12409);
T5 adds a learned number per head and distance bucket (Raffel et al. 2019, section 2.1,
https://arxiv.org/abs/1910.10683).

A scheme has `rotate(x, positions)` for queries and keys and, where it is `biased`,
`at(head, i, j)`: what is added to a score (for all heads: `weft.kernels.attend.bias.dense_bias`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from weft.config import config
from weft.errors import WeftError
from weft.kernels.device_cache import device_cache
from weft.registry import Registry

POSITIONS = Registry("position scheme")
PositionConfig = Annotated[Any, POSITIONS]  # a config, a table or a spec string


class PositionScheme(nn.Module):
    """No position information: rotate is the identity, and there is no bias."""

    biased = False

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """(b, h, n, d) at integer positions (n,) -> (b, h, n, d)."""
        return x

    def at(self, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """What is added to the score of `head` for a query at i and a key at j (broadcast)."""
        raise NotImplementedError(f"{type(self).__name__} adds nothing to scores")


@config
class RopeScaling:
    """Slower rotation, for sequences longer than those that a model was trained on.

    linear: every frequency is divided by `factor` (Chen et al. 2023, position interpolation,
    https://arxiv.org/abs/2306.15595). llama3: only periods longer than original / low; those
    shorter than original / high stay, and between them the two are mixed (Dubey et al. 2024,
    https://arxiv.org/abs/2407.21783).
    """

    kind: Literal["linear", "llama3"] = "linear"
    factor: float = 1.0
    low: float = 1.0  # llama3: turns within `original` positions below which a channel is slowed
    high: float = 4.0  # ... above which it stays
    original: int = 8192  # llama3: positions that the model was trained on

    def __post_init__(self) -> None:
        if not self.factor >= 1.0 or not 0 < self.low < self.high or self.original < 1:
            raise WeftError(
                "factor is at least 1, 0 < low < high and original at least 1; got "
                f"factor={self.factor}, low={self.low}, high={self.high}, original={self.original}"
            )

    def slowed(self, frequency: Tensor) -> Tensor:
        """Radians per position (d / 2,) -> the same after scaling."""
        if self.kind == "linear":
            return frequency / self.factor
        turns = self.original * frequency / (2 * math.pi)
        share = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)  # 1: as it is
        return (1 - share) * frequency / self.factor + share * frequency


@POSITIONS.register("rope")
@dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary positions; pairs are (p, p + d/2), or neighbours (2p, 2p + 1) if interleaved."""

    base: float = 10_000.0
    interleaved: bool = False
    rotated: float = 1.0  # share of a head's channels that turn: the first ones
    scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        if not 0 < self.rotated <= 1:
            raise WeftError(f"rotated is a share of channels in (0, 1]; got {self.rotated}")

    def channels(self, head_dim: int) -> int:
        """How many channels of a head turn."""
        return head_dim if self.rotated == 1.0 else int(head_dim * self.rotated)

    def build(self, heads: int, head_dim: int) -> Rotary:
        turned = self.channels(head_dim)
        if turned % 2 or not turned:
            raise WeftError(
                f"rope turns pairs of channels, so head_dim is even; got {turned}"
                if self.rotated == 1.0
                else f"rope turns pairs of channels; got {turned} of head_dim={head_dim} by "
                f"rotated={self.rotated}"
            )
        return Rotary(self, head_dim)


class Rotary(PositionScheme):
    """θ_p = position · base^(−2p/d); (x1, x2) -> (x1 cosθ − x2 sinθ, x2 cosθ + x1 sinθ)."""

    def __init__(self, config: Rope, head_dim: int) -> None:
        super().__init__()
        self.config, self.head_dim = config, head_dim

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate (b, h, n, d) by its positions (n,)."""
        d = self.config.channels(self.head_dim)
        if d == x.shape[-1]:
            return self._turned(x, positions)
        return torch.cat((self._turned(x[..., :d], positions), x[..., d:]), dim=-1)

    def frequencies(self, device: torch.device) -> Tensor:
        """Radians per position of each pair of channels, in float64: (d / 2,)."""
        d, scaling = self.config.channels(self.head_dim), self.config.scaling
        power = torch.arange(0, d, 2, device=device, dtype=torch.float64) / d
        frequency = self.config.base**-power
        return frequency if scaling is None else scaling.slowed(frequency)

    def _turned(self, x: Tensor, positions: Tensor) -> Tensor:
        angle = positions.to(x.device, torch.float64)[:, None] * self.frequencies(x.device)
        work = torch.promote_types(x.dtype, torch.float32)
        cos, sin = angle.cos().to(work), angle.sin().to(work)  # (n, d / 2)
        if self.config.interleaved:
            x1, x2 = x[..., 0::2].to(work), x[..., 1::2].to(work)
            turned = torch.stack((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1).flatten(-2)
        else:
            x1, x2 = x.to(work).chunk(2, dim=-1)
            turned = torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)
        return turned.to(x.dtype)  # (b, h, n, d)


@POSITIONS.register("rope2d")
@dataclass(frozen=True, kw_only=True)
class Rope2d:
    """Rotary positions of a square image: half of the channels rotate with y, half with x.

    Coordinates are multiplied by unit / width, so that a model reads an image of any resolution as
    if it were `unit` pixels wide: what it learned on small images holds on large ones. The periods
    run geometrically from `shortest` to `longest` in these coordinates. Tokens are in raster order,
    or tile by tile where `tile` = (height, width) in pixels.
    """

    width: int
    unit: float = 32.0
    tile: tuple[int, int] | None = None
    shortest: float = 4.0
    longest: float = 128.0

    def __post_init__(self) -> None:
        if any(side < 1 or self.width % side for side in self.tile or ()):
            raise WeftError(
                f"tiles (height, width) fill a picture of {self.width}×{self.width}; "
                f"got tile={self.tile}"
            )
        if self.width < 1 or not 0 < self.shortest <= self.longest or self.unit <= 0:
            raise WeftError(
                "width and unit are positive and 0 < shortest ≤ longest; got "
                f"width={self.width}, unit={self.unit}, {self.shortest} and {self.longest}"
            )

    def build(self, heads: int, head_dim: int) -> Rotary2d:
        if head_dim % 4:
            raise WeftError(
                f"rope2d turns pairs of channels for each axis, so head_dim is a multiple of 4; "
                f"got {head_dim}"
            )
        return Rotary2d(self, head_dim)

    def coordinates(self) -> Tensor:
        """(width², 2) in float64: y and x of each token, in units."""
        side = torch.arange(self.width, dtype=torch.float64)
        image = torch.stack(torch.meshgrid(side, side, indexing="ij"), dim=-1)
        if self.tile is not None:
            high, wide = self.tile
            image = image.unflatten(1, (-1, wide)).unflatten(0, (-1, high)).transpose(1, 2)
        return image.reshape(-1, 2) * (self.unit / self.width)


class Rotary2d(PositionScheme):
    """Channels (first half: y, second half: x) rotated in pairs (p, p + d/4) of their half."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: Rope2d, head_dim: int) -> None:
        super().__init__()
        self.config, self.head_dim = config, head_dim
        cos, sin = self._turns(torch.float32)
        self.register_buffer("cos", cos, persistent=False)  # (n, 2, d / 4)
        self.register_buffer("sin", sin, persistent=False)

    def _turns(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        config, pairs = self.config, self.head_dim // 4
        step = torch.arange(pairs, dtype=torch.float64) / max(pairs - 1, 1)
        periods = config.shortest * (config.longest / config.shortest) ** step
        angle = config.coordinates()[..., None] * (2 * math.pi / periods)  # (n, 2, d / 4)
        return angle.cos().to(dtype), angle.sin().to(dtype)

    def _apply(self, fn: Any, recurse: bool = True) -> Rotary2d:
        """Recompute the angles in the new precision: rounded ones would be wrong."""
        super()._apply(fn, recurse)
        exact = torch.promote_types(self.cos.dtype, torch.float32)
        self.cos, self.sin = (table.to(self.cos.device) for table in self._turns(exact))
        return self

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate (b, h, n, d) by its positions (n,), indices of tokens of the image."""
        n, size = x.shape[2], len(self.cos)
        if n == size:
            cos, sin = self.cos, self.sin  # (n, 2, d / 4)
        elif n < size and not torch.compiler.is_compiling() and int(positions[-1]) < size:
            cos, sin = self.cos[positions], self.sin[positions]
        else:
            raise WeftError(
                f"rope2d(width={self.config.width}) places {size} pixels; got {n} tokens "
                "(registers have no position in an image: pool by 'mean' or 'attention' instead)"
            )
        work = torch.promote_types(x.dtype, torch.float32)
        x1, x2 = x.to(work).unflatten(-1, (2, 2, -1)).unbind(-2)  # (b, h, n, 2, d / 4)
        turned = torch.stack((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-2)
        return turned.flatten(-3).to(x.dtype)  # (b, h, n, d)


@POSITIONS.register("alibi")
@dataclass(frozen=True, kw_only=True)
class Alibi:
    """A linear penalty on distance, steeper in some heads than in others."""

    def build(self, heads: int, head_dim: int) -> LinearBias:
        return LinearBias(heads)


class LinearBias(PositionScheme):
    """bias_a(i, j) = −m_a·|i − j| with m_a = 2^(−8a/h) for a power of two h."""

    biased = True

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def at(self, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return -self.slopes(head.device)[head] * (i - j).abs()

    def slopes(self, device: torch.device) -> Tensor:
        """In float32 for any model: the error of a rounded slope would grow with the distance."""
        return _slopes(self.heads, device)


@device_cache(32)
def _slopes(heads: int, device: torch.device) -> Tensor:
    return torch.tensor(alibi_slopes(heads), device=device)


def alibi_slopes(heads: int) -> list[float]:
    """The slopes of the paper; between powers of two, every other slope of the doubled list."""
    whole = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * a / whole) for a in range(1, whole + 1)]
    between = [2 ** (-4 * a / whole) for a in range(1, 2 * whole + 1, 2)]
    return slopes + between[: heads - whole]


@POSITIONS.register("t5")
@dataclass(frozen=True, kw_only=True)
class T5Bias:
    """A learned bias per head and distance bucket; far distances share buckets logarithmically."""

    buckets: int = 32
    max_distance: int = 128
    causal: bool = False
    across_layers: bool = False  # one table for all layers of a stack

    def __post_init__(self) -> None:
        least = 2 if self.causal else 4
        if self.buckets < least or (not self.causal and self.buckets % 2):
            raise WeftError(
                f"t5 needs at least {least} buckets, an even number in both directions; "
                f"got buckets={self.buckets}"
            )
        near = self.buckets // (2 if self.causal else 4)
        if self.max_distance <= near:
            raise WeftError(
                f"distances up to {near} have buckets of their own, so max_distance is larger; "
                f"got max_distance={self.max_distance}"
            )

    def build(self, heads: int, head_dim: int) -> BucketBias:
        return BucketBias(self, heads)


class BucketBias(PositionScheme):
    """bias(i, j) = table[bucket(j − i)]."""

    biased = True

    def __init__(self, config: T5Bias, heads: int) -> None:
        super().__init__()
        self.config = config
        self.table = nn.Parameter(torch.randn(config.buckets, heads) * 0.02)

    def at(self, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.table[self.bucket(j - i), head]

    def bucket(self, offset: Tensor) -> Tensor:
        """The bucket of each offset j − i: exact while near, logarithmic up to max_distance."""
        buckets = self.config.buckets
        if self.config.causal:
            start, distance = torch.zeros_like(offset), (-offset).clamp(min=0)
        else:
            buckets //= 2
            start, distance = (offset > 0) * buckets, offset.abs()
        near = buckets // 2
        scale = (buckets - near) / math.log(self.config.max_distance / near)
        far = near + (torch.log(distance.clamp(min=1).float() / near) * scale).long()
        return start + torch.where(distance < near, distance, far.clamp(max=buckets - 1))


def build_positions(config: Any | None, heads: int, head_dim: int) -> PositionScheme:
    """The module for a position config, or the identity for None."""
    return PositionScheme() if config is None else config.build(heads, head_dim)
