"""Convolutions with normalised weights: what light and dynamic convolution share.

    u = glu(W_in x),    y_i = sum_s taps_is u_(i + s − before),    out = W_out y

A head is a group of channels with the same taps; its taps are a softmax over `kernel` offsets.
`before` is kernel − 1 where the future is hidden, else (kernel − 1) // 2. Beyond the ends and at
padding u is 0, and weights there are not shared out to the others. The frame's dropout drops taps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import WeftError, at_least
from weft.kernels.block_sparse.band import tap_sum
from weft.layers.projections.dense import join_heads, split_heads
from weft.mixers.base import Frame, Mixer, State


def kernel_at(kernel: int | tuple[int, ...], layer: int, name: str) -> int:
    """The kernel of one layer."""
    if not isinstance(kernel, tuple):
        return kernel
    if layer >= len(kernel):
        raise WeftError(
            f"{name} has kernels for {len(kernel)} layers; got layer {layer}: give one kernel, or "
            "one per layer"
        )
    return kernel[layer]


def check_kernel(kernel: int | tuple[int, ...]) -> None:
    """Refuse kernels of no token."""
    for each in kernel if isinstance(kernel, tuple) else (kernel,):
        at_least(1, kernel=each)
    if kernel == ():
        raise WeftError("kernel is one number, or one per layer; got none")


@dataclass(frozen=True, kw_only=True)
class ConvolutionConfig:
    """Of mixers that weigh neighbours by a kernel."""

    kernel: int | tuple[int, ...] = 31  # tokens read, itself included; several: one per layer

    def __post_init__(self) -> None:
        check_kernel(self.kernel)

    @classmethod
    def variants(cls) -> tuple[Self, ...]:
        """Settings that the contract suite tests."""
        return cls(kernel=7), cls(kernel=(4,))


@dataclass(kw_only=True)
class ConvolutionState(State):
    """The last kernel − 1 inputs of the convolution."""

    u: Tensor  # (b, m, h·d)


class ConvolutionMixer(Mixer):
    """Gate, convolve, project; subclasses give the logits of the taps."""

    varies = False  # whether taps differ from token to token
    outside_graphs = True

    def __init__(self, config: Any, frame: Frame) -> None:
        super().__init__(config, frame)
        self.refuse_positions(f"{config.name} knows offsets by its taps")
        self.refuse_groups()
        self.kernel = kernel_at(config.kernel, frame.layer, config.name)
        self.before = self.kernel - 1 if frame.causal else (self.kernel - 1) // 2
        inner = frame.heads * frame.head_dim
        self.to_in = nn.Linear(frame.dim, 2 * inner, bias=frame.bias)
        self.to_out = nn.Linear(inner, frame.dim, bias=frame.bias)

    def logits(self, u: Tensor) -> Tensor:
        """u (b, n, h·d) -> logits of the taps (b, h, n, t), or (1, h, 1, t)."""
        raise NotImplementedError(f"{type(self).__name__} has to define logits")

    def taps(self, u: Tensor) -> Tensor:
        """u (b, n, h·d) -> the taps, dropped out in training."""
        logits = self.logits(u)
        work = torch.promote_types(logits.dtype, torch.float32)
        taps = logits.to(work).softmax(-1).to(u.dtype)
        return F.dropout(taps, self.frame.dropout, self.training)

    def mix(
        self,
        x: Tensor,
        valid: Tensor | None,
        context: Tensor | None,
        context_valid: Tensor | None,
    ) -> Tensor:
        """All tokens at once."""
        u = self._inputs(x, valid)
        y = tap_sum(split_heads(u, self.frame.heads), self.taps(u), self.before)
        return self.to_out(join_heads(y))

    def reference(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
    ) -> Tensor:
        """Tap by tap: shift, weigh, add."""
        n, u = x.shape[1], self._inputs(x, valid)
        taps = self.logits(u).softmax(-1)  # (_, h, _, t)
        wide = F.pad(u, (0, 0, self.before, self.kernel - 1 - self.before))
        y = torch.zeros_like(u)
        for s in range(self.kernel):
            weight = taps[..., s].transpose(1, 2).repeat_interleave(self.frame.head_dim, dim=2)
            y = y + weight * wide[:, s : s + n]
        return self.to_out(y)

    def _inputs(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """What is convolved: (b, n, h·d), 0 at padding."""
        u = F.glu(self.to_in(x), dim=-1)
        return u if valid is None else u.masked_fill(~valid[..., None], 0.0)

    def start(self, batch: int = 1) -> ConvolutionState:
        """No inputs."""
        self._need_causal()
        return ConvolutionState(u=self.to_out.weight.new_zeros(batch, 0, self.to_out.in_features))

    def step(self, x: Tensor, state: ConvolutionState) -> tuple[Tensor, ConvolutionState]:
        """Convolve the new tokens after the remembered ones."""
        self._need_causal()
        n, new = x.shape[1], self._inputs(x)
        u, taps = torch.cat((state.u, new), dim=1), self.taps(new)
        if self.varies:
            taps = F.pad(taps, (0, 0, u.shape[1] - n, 0))  # (b, h, m + n, t)
        y = tap_sum(split_heads(u, self.frame.heads), taps, self.before)[:, :, -n:]
        kept = u[:, max(0, u.shape[1] - self.kernel + 1) :].clone()
        return self.to_out(join_heads(y)), ConvolutionState(position=state.position + n, u=kept)

    def letters(self, tokens: int) -> dict[str, int]:
        """The width of the kernel in this layer."""
        return {"w": self.kernel}

    def state_size(self, tokens: int) -> int:
        """At most kernel − 1 inputs."""
        self._need_causal()
        return min(tokens, self.kernel - 1) * self.to_out.in_features
