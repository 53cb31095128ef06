"""A feed-forward in chunks of tokens: the same result with less memory.

    y[i : i + tokens] = inner(x[i : i + tokens])

Any length works, the last chunk is shorter. In training each chunk is recomputed in the backward
pass, so O(tokens·h) hidden units exist at a time instead of O(b·n·h), for one more forward of
`inner`. Dropout draws per chunk, so it drops other units than without chunks. `inner` must
transform each token by itself in training too: experts with a capacity and batch statistics are
refused.

Paper: Kitaev et al. 2020, Reformer, section 3, https://arxiv.org/abs/2001.04451
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from weft.errors import WeftError
from weft.feedforward.base import (
    FEEDFORWARDS,
    FeedForward,
    FeedForwardConfig,
    FeedForwardTraits,
)


@FEEDFORWARDS.register("chunked")
@dataclass(frozen=True, kw_only=True)
class Chunked:
    """Another feed-forward, chunk by chunk."""

    inner: FeedForwardConfig = field(default_factory=lambda: FEEDFORWARDS.make("dense"))
    tokens: int = 1024  # of a chunk

    traits = FeedForwardTraits(
        summary="another feed-forward, `tokens` at a time: less memory in training",
        paper="Kitaev et al. 2020, https://arxiv.org/abs/2001.04451",
        parameters="those of `inner`",
        time="that of `inner`, and one more forward in training",
        tensor="inside",
    )

    def __post_init__(self) -> None:
        if not self.inner.traits.tokenwise:
            raise WeftError(
                f"tokens of {self.inner.name} share something in training, so chunks would change "
                "it; chunk one that is tokenwise, such as dense"
            )
        if self.tokens < 1:
            raise WeftError(f"a chunk has at least 1 token; got tokens={self.tokens}")

    def build(self, dim: int, dropout: float = 0.0, bias: bool = True) -> ChunkedFeedForward:
        return ChunkedFeedForward(self, dim, dropout, bias)


class ChunkedFeedForward(FeedForward):
    """inner, `tokens` at a time."""

    def __init__(self, config: Chunked, dim: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.config = config
        self.inner = config.inner.build(dim, dropout, bias)

    def forward(self, x: Tensor, *, valid: Tensor | None = None) -> Tensor:
        """(b, n, c) -> (b, n, c)."""
        chunks = x.flatten(0, 1).split(self.config.tokens)
        if len(chunks) == 1:
            return self.inner(x, valid=valid)
        marks = [None] * len(chunks) if valid is None else valid.flatten().split(self.config.tokens)
        parts = [self._part(chunk, mark) for chunk, mark in zip(chunks, marks, strict=True)]
        return torch.cat(parts).unflatten(0, x.shape[:2])

    def _part(self, x: Tensor, valid: Tensor | None) -> Tensor:
        valid = None if valid is None else valid[None]
        if not torch.is_grad_enabled():
            return self.inner(x[None], valid=valid)[0]
        return checkpoint(self.inner, x[None], valid=valid, use_reentrant=False)[0]
