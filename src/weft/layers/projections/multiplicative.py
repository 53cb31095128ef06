"""Sparse projections: queries, keys and values from few parameters, any head from any input.

    multiplicative         y[s, m] = Σ_i x_i D[s, i] E[i, m] + b[s, m]       S modules of M = c / S
    multiplicative_conv    z = the same without b, once;   q, k, v = conv_q(z), conv_k(z), conv_v(z)

D (S, c) and E (c, M) have c·(S + M) parameters instead of c², fewest at S = √c, and can still send
any input to any output: any permutation is some D and E. S = 1 with D = 1 is a dense matrix. Few
tokens are multiplied by the factors, which reads the fewest numbers; more than M tokens in a call
by the product D[s, i] E[i, m], computed for the call.

The convolution runs over (tokens, modules) of z (n, S, M), M to M channels, weights shared by the
modules: `length` × `width` taps for q and k, `length` × 1 for v, zeros outside. Causal, it reads
the token and `length` − 1 before it; bidirectional, half of them on each side. Decoding stores the
last `length` − 1 rows of z, and convolves few tokens by a matrix product. Keys cannot be grouped:
kv_heads = heads. There is no cross-attention: a context has no neighbours in this sequence.

Paper: Jaszczur et al. 2021, section 3.2, https://arxiv.org/abs/2111.12763
Differs from it: z has no bias of its own (the convolutions have one), so that padding stays 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import Unsupported, WeftError
from weft.layers.projections.dense import (
    PROJECTIONS,
    Projections,
    join_heads,
    output_matrix,
    split_heads,
)

# Up to this many tokens are convolved faster as a matrix product of unfolded copies.
_FEW = 8


@PROJECTIONS.register("multiplicative")
@dataclass(frozen=True, kw_only=True)
class Multiplicative:
    """One factored matrix each for queries, keys and values."""

    modules: int = 16  # S: divides the width of queries, and of keys
    out: bool = False  # a dense output matrix follows

    neighbours: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_positive(self, "modules")

    def build(self, frame: Any) -> MultiplicativeProjections:
        sizes = frame.dim, frame.heads, frame.kv_heads, frame.head_dim, frame.bias
        linear = partial(_multiply, self.modules)
        return MultiplicativeProjections(*sizes, out=self.out, linear=linear)


@PROJECTIONS.register("multiplicative_conv")
@dataclass(frozen=True, kw_only=True)
class MultiplicativeConv:
    """One factored matrix, then a small convolution each for queries, keys and values."""

    modules: int = 16  # S: divides the width of the heads together
    length: int = 3  # tokens that a convolution reads
    width: int = 3  # modules that those of q and k read: odd
    out: bool = False  # a dense output matrix follows

    neighbours: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_positive(self, "modules", "length", "width")
        if self.width % 2 == 0:
            raise WeftError(
                f"a convolution is centred on a module, so width is odd; got {self.width}"
            )

    def build(self, frame: Any) -> ConvolvedProjections:
        return ConvolvedProjections(self, frame)


class Multiply(nn.Module):
    """(..., inputs) -> (..., outputs) through D (modules, inputs) and E (inputs, M)."""

    def __init__(self, inputs: int, outputs: int, bias: bool, *, modules: int) -> None:
        super().__init__()
        if outputs % modules:
            raise WeftError(
                f"modules divide the outputs: {outputs} is not a multiple of modules={modules}"
            )
        self.scale = nn.Parameter(torch.randn(modules, inputs) * 0.5)
        self.weight = nn.Parameter(torch.empty(inputs, outputs // modules))
        nn.init.xavier_uniform_(self.weight)
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """By the factors for few tokens, by their product for many."""
        if x.shape[:-1].numel() > self.weight.shape[1]:
            return F.linear(x, self.product(), self.bias)
        scaled = (x[..., None, :] * self.scale).flatten(0, -2)  # (tokens · S, inputs)
        y = (scaled @ self.weight).view(*x.shape[:-1], -1)  # (..., outputs)
        return y if self.bias is None else y + self.bias

    def product(self) -> Tensor:
        """The product of the factors: a matrix (outputs, inputs)."""
        return (self.scale[:, None] * self.weight.t()).flatten(0, 1)


def _multiply(modules: int, inputs: int, outputs: int, bias: bool) -> Multiply:
    return Multiply(inputs, outputs, bias, modules=modules)


class MultiplicativeProjections(Projections):
    """Projections whose maps are factored."""

    to_q: Multiply
    to_k: Multiply
    to_v: Multiply

    def qkv(self, x: Tensor) -> list[Tensor]:
        """q (b, h, n, d), k and v (b, g, n, d) of one sequence."""
        return [self.q(x), self.k(x), self.v(x)]


class ModuleConvolution(nn.Module):
    """A convolution over tokens and modules, M channels to M."""

    def __init__(self, channels: int, length: int, width: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, channels, length, width))
        nn.init.xavier_uniform_(self.weight)
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def forward(self, z: Tensor) -> Tensor:
        """(b, length − 1 + n, S, M) -> (b, n, S·M)."""
        margin = self.weight.shape[3] // 2
        # Channels-last memory is what convolutions are fastest in.
        y = F.conv2d(z.permute(0, 3, 1, 2), self.weight, self.bias, padding=(0, margin))
        return y.permute(0, 2, 3, 1).flatten(2)

    def product(self, columns: Tensor) -> Tensor:
        """The same from what the widest convolution reads, (M, length, width, b, n, S)."""
        margin = (columns.shape[2] - self.weight.shape[3]) // 2
        if margin:
            columns = columns[:, :, margin:-margin]
        read = columns.flatten(3).flatten(0, 2)  # (M · length · width, b · n · S)
        y = F.linear(read.t(), self.weight.flatten(1), self.bias)  # (b · n · S, M)
        return y.view(*columns.shape[3:5], -1)


class ConvolvedProjections(nn.Module):
    """The shared map z, its convolutions to q, k and v, and an optional output matrix."""

    foldable = False  # see Projections

    def __init__(self, config: MultiplicativeConv, frame: Any) -> None:
        super().__init__()
        if frame.kv_heads != frame.heads:
            raise Unsupported(
                f"multiplicative_conv makes keys as wide as queries; got heads={frame.heads}, "
                f"kv_heads={frame.kv_heads}; use projection='multiplicative' to group keys"
            )
        self.heads, self.modules_count = frame.heads, config.modules
        inner, self.before = frame.heads * frame.head_dim, config.length - 1
        # Zeros before and after a whole sequence.
        self.around = (self.before, 0) if frame.causal else (self.before // 2, config.length // 2)
        self.shared = Multiply(frame.dim, inner, False, modules=config.modules)
        channels = inner // config.modules
        self.to_q, self.to_k, self.to_v = (
            ModuleConvolution(channels, config.length, width, frame.bias)
            for width in (config.width, config.width, 1)
        )
        self.to_out = output_matrix(inner, frame.dim, frame.bias, config.out)
        self.memory_size = self.before * inner

    def qkv(self, x: Tensor) -> list[Tensor]:
        """q, k and v (b, h, n, d) of a whole sequence."""
        return self._convolved(self._padded(x), self.to_q, self.to_k, self.to_v)

    def q(self, x: Tensor) -> Tensor:
        """Unsupported: only cross-attention needs queries alone."""
        raise _no_context()

    def k(self, x: Tensor) -> Tensor:
        """(b, n, c) -> (b, h, n, d), of a whole sequence."""
        return self._convolved(self._padded(x), self.to_k)[0]

    def v(self, x: Tensor) -> Tensor:
        """(b, n, c) -> (b, h, n, d), of a whole sequence."""
        return self._convolved(self._padded(x), self.to_v)[0]

    def out(self, y: Tensor) -> Tensor:
        """(b, h, n, d) -> (b, n, c)."""
        return self.to_out(join_heads(y))

    def start(self, batch: int) -> Tensor:
        """Rows of z before the first token: zeros (b, length − 1, S·M)."""
        outputs = self.shared.weight.shape[1] * self.modules_count
        return self.shared.weight.new_zeros(batch, self.before, outputs)

    def step(self, x: Tensor, memory: Tensor) -> tuple[list[Tensor], Tensor]:
        """q, k and v of the next tokens (b, n, c), and the last rows of z."""
        z = torch.cat((memory, self.shared(x)), dim=1)
        return self._convolved(z, self.to_q, self.to_k, self.to_v), self._last(z)

    def keys(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """k and v of the next tokens (b, n, c), and the last rows of z."""
        z = torch.cat((memory, self.shared(x)), dim=1)
        k, v = self._convolved(z, self.to_k, self.to_v)
        return k, v, self._last(z)

    def _padded(self, x: Tensor) -> Tensor:
        """z of a whole sequence, with the zeros around it."""
        return F.pad(self.shared(x), (0, 0, *self.around))

    def _last(self, z: Tensor) -> Tensor:
        return z[:, z.shape[1] - self.before :].clone()

    def _convolved(self, z: Tensor, *maps: ModuleConvolution) -> list[Tensor]:
        z = z.unflatten(-1, (self.modules_count, -1))  # (b, length − 1 + n, S, M)
        if len(z) * (z.shape[1] - self.before) > _FEW:
            return [split_heads(each(z), self.heads) for each in maps]
        columns = _columns(z, *self.to_q.weight.shape[2:])
        return [split_heads(each.product(columns), self.heads) for each in maps]


def _columns(z: Tensor, length: int, width: int) -> Tensor:
    """(b, length − 1 + n, S, M) -> what a convolution reads, (M, length, width, b, n, S)."""
    padded = F.pad(z.transpose(2, 3), (width // 2, width // 2))
    read = padded.unfold(1, length, 1).unfold(3, width, 1)  # (b, n, M, S, length, width)
    return read.permute(2, 4, 5, 0, 1, 3).contiguous()


def _no_context() -> Unsupported:
    return Unsupported(
        "a convolutional projection reads neighbours in its own sequence, so it cannot attend to "
        "a context; use projection='multiplicative' or 'dense' there"
    )


def _check_positive(config: Any, *names: str) -> None:
    for name in names:
        if getattr(config, name) < 1:
            raise WeftError(f"{name} is at least 1; got {name}={getattr(config, name)}")
