"""Projections around attention: model width to heads and back, with grouped keys (GQA, MQA).

Grouped: h query heads share g key heads, query head a reads key head a // (h / g)
(Ainslie et al. 2023, https://arxiv.org/abs/2305.13245); g = 1 is multi-query attention.

The frame's config chooses the projection: `dense` here, the sparse ones in
`layers/projections/multiplicative.py`. Its module has

    qkv(x), q(x), k(x), v(x)      a whole sequence (b, n, c) -> (b, heads, n, d)
    out(y)                        (b, heads, n, d) -> (b, n, c); without an output matrix, the
                                  concatenated heads are the result
    start(batch), step(x, memory), keys(x, memory), memory_size
                                  decoding: what is stored of earlier tokens; dense: nothing
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from weft.errors import WeftError
from weft.kernels.adjacent import joined
from weft.layers.norm import Norm
from weft.registry import Registry

PROJECTIONS = Registry("projection")
ProjectionConfig = Annotated[Any, PROJECTIONS]  # a config, a table or a spec string

# On a GPU, this many tokens make one wide product faster than several narrow ones.
_WIDE = 1024


@PROJECTIONS.register("dense")
@dataclass(frozen=True, kw_only=True)
class DenseProjection:
    """A matrix each for queries, keys, values and the output."""

    out: bool = True  # an output matrix follows
    biases: str | None = None  # which of q, k, v and o have a bias, as "qv"; None: as the frame has
    query_scale: float = 1.0  # queries are multiplied by it: √d leaves scores undivided
    head_norm: Norm | None = None  # of each query and each key, over the channels of its head

    name: ClassVar[str]  # its key in the registry
    neighbours: ClassVar[bool] = False  # whether it reads neighbouring tokens

    def __post_init__(self) -> None:
        if set(self.biases or "") - set("qkvo"):
            raise WeftError(f"biases names matrices by the letters q, k, v, o; got {self.biases!r}")
        if not self.query_scale > 0:
            raise WeftError(f"query_scale multiplies queries, above 0; got {self.query_scale}")

    @property
    def plain(self) -> bool:
        """Whether heads are the matrix products alone."""
        return self.query_scale == 1.0 and self.head_norm is None

    def build(self, frame: Any) -> Projections:
        bias = frame.bias if self.biases is None else self.biases
        sizes = frame.dim, frame.heads, frame.kv_heads, frame.head_dim, bias
        if self.plain:
            return Projections(*sizes, out=self.out)
        return AdjustedProjections(self, *sizes)


class Projections(nn.Module):
    """W_q, W_k, W_v and W_o; `q`, `k`, `v` give (b, heads, n, d), `out` returns to (b, n, c)."""

    memory_size = 0  # numbers per batch row that `step` stores

    def __init__(
        self,
        dim: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        bias: bool | str,
        *,
        out: bool = True,
        linear: Callable[[int, int, bool], nn.Module] = nn.Linear,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        inner, kv = heads * head_dim, kv_heads * head_dim
        named = bias if isinstance(bias, str) else "qkvo" * bias
        self.to_q, self.to_k, self.to_v = (
            linear(dim, width, letter in named)
            for letter, width in zip("qkv", (inner, kv, kv), strict=True)
        )
        self.to_out = output_matrix(inner, dim, "o" in named, out)

    @property
    def foldable(self) -> bool:
        """Whether keys and values come from plain nn.Linear modules without hooks.

        Their matrices may then be folded into other products, without computing k and v.
        """
        return type(self) is Projections and all(
            type(each) is nn.Linear and not each._forward_hooks and not each._forward_pre_hooks
            for each in (self.to_k, self.to_v)
        )

    def qkv(self, x: Tensor) -> list[Tensor]:
        """q (b, h, n, d), k and v (b, g, n, d) of one sequence."""
        maps: tuple[Any, ...] = (self.to_q, self.to_k, self.to_v)
        return [split_heads(y, y.shape[-1] // self.head_dim) for y in side_by_side(x, maps)]

    def q(self, x: Tensor) -> Tensor:
        """(b, n, c) -> (b, h, n, d)."""
        return split_heads(self.to_q(x), self.heads)

    def k(self, x: Tensor) -> Tensor:
        """(b, n, c) -> (b, g, n, d)."""
        return split_heads(self.to_k(x), self.kv_heads)

    def v(self, x: Tensor) -> Tensor:
        """(b, n, c) -> (b, g, n, d)."""
        return split_heads(self.to_v(x), self.kv_heads)

    def out(self, y: Tensor) -> Tensor:
        """(b, h, n, d) -> (b, n, c)."""
        return self.to_out(join_heads(y))

    def start(self, batch: int) -> Tensor | None:
        """The memory before the first token; None: there is never any."""
        return None

    def step(self, x: Tensor, memory: Tensor | None) -> tuple[list[Tensor], Tensor | None]:
        """q, k and v of the next tokens (b, n, c), and the memory after them."""
        return self.qkv(x), None

    def keys(self, x: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """k and v of the next tokens (b, n, c), and the memory after them."""
        return self.k(x), self.v(x), None


class AdjustedProjections(Projections):
    """Projections whose queries are scaled, or whose queries and keys are normalised by head."""

    def __init__(
        self,
        config: DenseProjection,
        dim: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        bias: bool | str,
    ) -> None:
        super().__init__(dim, heads, kv_heads, head_dim, bias, out=config.out)
        self.scale, norm = config.query_scale, config.head_norm
        self.q_norm = nn.Identity() if norm is None else norm.build(head_dim)
        self.k_norm = nn.Identity() if norm is None else norm.build(head_dim)

    def qkv(self, x: Tensor) -> list[Tensor]:
        """q (b, h, n, d), k and v (b, g, n, d) of one sequence."""
        q, k, v = super().qkv(x)
        return [self.q_norm(q) * self.scale, self.k_norm(k), v]

    def q(self, x: Tensor) -> Tensor:
        """(b, n, c) -> (b, h, n, d)."""
        return self.q_norm(super().q(x)) * self.scale

    def k(self, x: Tensor) -> Tensor:
        """(b, n, c) -> (b, g, n, d)."""
        return self.k_norm(super().k(x))


def output_matrix(inner: int, dim: int, bias: bool, wanted: bool) -> nn.Module:
    """The matrix after the heads, or the identity; then the heads are as wide as the model."""
    if wanted:
        return nn.Linear(inner, dim, bias=bias)
    if inner != dim:
        raise WeftError(
            f"without an output matrix the concatenated heads are the result: heads · head_dim "
            f"= {inner} must be dim = {dim}; set out=true, or change the heads"
        )
    return nn.Identity()


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(b, n, h·d) -> (b, h, n, d)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(b, h, n, d) -> (b, n, h·d)."""
    return x.transpose(1, 2).flatten(2)


def side_by_side(x: Tensor, maps: tuple[nn.Linear, ...]) -> list[Tensor]:
    """Several linear maps of one x (b, n, c): one product where that is faster."""
    if not x.is_cuda or x.shape[0] * x.shape[1] < _WIDE:
        return [each(x) for each in maps]
    weight = torch.cat([each.weight for each in maps])
    bias = _joint_bias(maps)
    sizes = [each.out_features for each in maps]
    if torch.is_autocast_enabled("cuda") or torch.compiler.is_compiling():
        return list(F.linear(x, weight, bias).split(sizes, dim=-1))
    return list(_SideBySide.apply(x, weight, bias, sizes))


def _joint_bias(maps: tuple[nn.Linear, ...]) -> Tensor | None:
    """The biases of several maps in one vector; a map without one counts as zeros."""
    if all(each.bias is None for each in maps):
        return None
    zeros = maps[0].weight.new_zeros
    return torch.cat([zeros(m.out_features) if m.bias is None else m.bias for m in maps])


class _SideBySide(torch.autograd.Function):
    """F.linear and split; gradients that are adjacent in memory already are not copied."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, sizes: list[int]
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None
        return F.linear(x, weight, bias).split(sizes, dim=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        joint = joined(grads).flatten(0, 1)  # (b·n, widths)
        dx = (joint @ weight).view_as(x)
        dweight = joint.t() @ x.flatten(0, 1)
        return dx, dweight, joint.sum(0) if ctx.biased else None, None
