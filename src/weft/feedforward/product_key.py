"""Product-key memory: each token reads a few of very many learned values.

    q = norm(W_q x), in heads;  q = (q1, q2);   score of key (i, j) = q1 · a_i + q2 · b_j
    y = Σ over heads, Σ over the k best of keys² keys:  softmax(scores)_m · v_m

The k best products are among the k × k sums of the k best halves, so the search is exact and costs
2·keys + k² scores instead of keys². Each head has its own keys; the values are shared. The queries
pass a batch norm over real tokens (running statistics in evaluation), which spreads the use of
keys. Dropout acts on the weights of the values read.

Time O(heads·(keys·key_dim + k² + k·c)) per token, parameters keys²·c for the values. Decoding
stores nothing. With k = keys = 1 the one value is read, whatever the query.

Paper: Lample et al. 2019, section 3, https://arxiv.org/abs/1907.05242
Differs from it: one optimiser for all; dense gradients of the values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from weft.errors import WeftError, at_least
from weft.feedforward.activations import divided
from weft.feedforward.base import FEEDFORWARDS, FeedForward, FeedForwardTraits
from weft.layers.across import ALONE, Across


@FEEDFORWARDS.register("product_key")
@dataclass(frozen=True, kw_only=True)
class ProductKey:
    """keys² values, of which each head of each token reads `top`."""

    keys: int = 512  # of each half: the memory has keys² values
    heads: int = 4
    top: int = 32  # values that a head reads
    key_dim: int = 256  # width of a query, both halves
    query_norm: bool = True  # batch norm on the queries

    traits = FeedForwardTraits(
        summary="a memory of keys² values, of which each head reads the `top` best",
        paper="Lample et al. 2019, https://arxiv.org/abs/1907.05242",
        parameters="keys²·c + heads·key_dim·(c + keys)",
        time="heads·(key_dim·(c + keys) + k² + k·c)",
        tokenwise=False,
        tensor="heads",
    )

    def __post_init__(self) -> None:
        at_least(1, keys=self.keys, heads=self.heads, top=self.top)
        if self.top > self.keys:
            raise WeftError(
                f"a head takes its top from the best of each half, at most keys={self.keys}; "
                f"got top={self.top}"
            )
        if self.key_dim < 2 or self.key_dim % 2:
            raise WeftError(f"a query has two halves, so key_dim is even; got {self.key_dim}")

    def share(self, dim: int, ways: int) -> ProductKey:
        """The config of one of `ways` ranks, each with some of the heads and all values."""
        return replace(self, heads=divided("heads", self.heads, ways))

    def build(self, dim: int, dropout: float = 0.0, bias: bool = True) -> ProductKeyMemory:
        return ProductKeyMemory(self, dim, dropout, bias)


class ProductKeyMemory(FeedForward):
    """Σ softmax(scores)_m · v_m over the best keys of all heads."""

    def __init__(self, config: ProductKey, dim: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.config = config
        width, half = config.heads * config.key_dim, config.key_dim // 2
        self.to_query = nn.Linear(dim, width, bias=bias)
        self.norm = TokenBatchNorm(width) if config.query_norm else None
        self.keys = nn.Parameter(torch.empty(2, config.heads, config.keys, half))
        self.dropout = nn.Dropout(dropout)
        self.to_out = nn.EmbeddingBag(config.keys**2, dim, mode="sum")
        nn.init.uniform_(self.keys, -(half**-0.5), half**-0.5)
        nn.init.normal_(self.to_out.weight, std=dim**-0.5)

    def forward(self, x: Tensor, *, valid: Tensor | None = None) -> Tensor:
        """(b, n, c) -> (b, n, c)."""
        query = self.to_query(x.flatten(0, 1))
        if self.norm is not None:
            query = self.norm(query, None if valid is None else valid.flatten())
        scores, index = self.best(query)  # (t, h, k) twice
        wide = torch.promote_types(scores.dtype, torch.float32)
        weights = self.dropout(scores.to(wide).softmax(-1)).to(self.to_out.weight.dtype)
        y = self.to_out(index.flatten(1), per_sample_weights=weights.flatten(1))
        return y.to(query.dtype).unflatten(0, x.shape[:2])

    def best(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (t, h·d) -> scores and numbers of the best keys of each head, (t, h, k) twice."""
        halves = query.unflatten(1, (self.config.heads, 2, -1))  # (t, h, 2, d)
        scores = torch.einsum("thsd,shkd->sthk", halves, self.keys.to(query.dtype))
        (first, second), (i, j) = scores.topk(self.config.top, dim=-1)
        sums = (first[..., :, None] + second[..., None, :]).flatten(-2)  # (t, h, k·k)
        numbers = (i[..., :, None] * self.config.keys + j[..., None, :]).flatten(-2)
        values, place = sums.topk(self.config.top, dim=-1)
        return values, numbers.gather(-1, place)


class TokenBatchNorm(nn.Module):
    """Batch norm over the real tokens; a batch of one token works."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, dim: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.across: Across = ALONE
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """(t, c) -> (t, c)."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        if self.training:
            mean, variance = self._statistics(wide, real)
        else:
            mean, variance = self.running_mean, self.running_var
        normal = (wide - mean) * (variance + self.eps).rsqrt()
        return (normal * self.weight + self.bias).to(x.dtype)

    def _statistics(self, x: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and variance over the real tokens of all devices; updates the running averages."""
        share = x.new_ones(len(x), 1) if real is None else real[:, None].to(x.dtype)
        count = self.across.sum(share.sum()).clamp(min=1)
        mean = self.across.sum((x * share).sum(0)) / count
        variance = self.across.sum(((x - mean).square() * share).sum(0)) / count
        with torch.no_grad():
            unbiased = variance * count / (count - 1).clamp(min=1)
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        return mean, variance
