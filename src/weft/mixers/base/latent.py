"""Mixers through few learned vectors: these read the tokens, and the tokens read them."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.layers.cross_attention import CrossAttention
from weft.mixers.base import Frame, Mixer


class LatentMixer(Mixer):
    """Tokens read `latents_of` a source by `spread`; cost is linear in both lengths."""

    spread: CrossAttention

    def latents_of(self, source: Tensor, real: Tensor | None, *, plain: bool) -> Tensor:
        """(b, m, c), real where real (b, m) -> (b, r, c); `plain`: by the equation."""
        raise NotImplementedError(f"{type(self).__name__} has to define latents_of")

    def mix(
        self,
        x: Tensor,
        valid: Tensor | None,
        context: Tensor | None,
        context_valid: Tensor | None,
    ) -> Tensor:
        """Read, and be read."""
        source, real = (x, valid) if context is None else (context, context_valid)
        return self.spread(x, self.latents_of(source, real, plain=False))

    def reference(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
    ) -> Tensor:
        """The same by dense attention, each row over its real tokens alone."""
        source, real = (x, valid) if context is None else (context, context_valid)
        rows = []
        for a in range(len(x)):
            count = source.shape[1] if real is None else int(real[a].sum())
            z = self.latents_of(source[a : a + 1, :count], None, plain=True)
            rows.append(self.spread(x[a : a + 1], z, plain=True))
        return torch.cat(rows)


def attention_sizes(frame: Frame) -> tuple[int, int, int, int, bool, float]:
    """The arguments of `CrossAttention` in this frame."""
    return frame.dim, frame.heads, frame.kv_heads, frame.head_dim, frame.bias, frame.dropout
