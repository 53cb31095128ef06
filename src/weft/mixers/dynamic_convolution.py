"""Dynamic convolution: a token says itself how it weighs its neighbours, one set of taps per head.

    u = glu(W_in x),   y_i = sum_s softmax_s(W_taps u_i)_s u_(i + s − before),   out = W_out y

Weights follow from the token alone, not from what it reads. kernel 1 passes u on. The rest is in
`convolution_mixer.py`.
Time O(n (kernel + c) c), memory O(n kernel h). Decoding keeps kernel − 1 inputs of c numbers.

Paper: Wu et al. 2019, section 4, https://arxiv.org/abs/1901.10430
Differs from it: the kernel may be even.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from weft.layers.projections.dense import split_heads
from weft.mixers.base import MIXERS, Frame, Traits
from weft.mixers.base.convolution import ConvolutionConfig, ConvolutionMixer


@MIXERS.register("dynamic_convolution")
@dataclass(frozen=True, kw_only=True)
class DynamicConvolution(ConvolutionConfig):
    """Depthwise convolution with weights made from the token."""

    traits: ClassVar[Traits] = Traits(
        family="mixing",
        paper="Wu et al. 2019, https://arxiv.org/abs/1901.10430",
        time="n w c",
        memory="n w h",
        context_parallel="tokens that taps reach at each border",
        state="c·(w − 1)",
        causal=True,
        note="a convolution runs along one sequence",
        tensor="its heads share out the channels of the model",
    )

    def build(self, frame: Frame) -> DynamicConvolutionMixing:
        return DynamicConvolutionMixing(self, frame)


class DynamicConvolutionMixing(ConvolutionMixer):
    """Taps of its own for every token."""

    varies = True

    def __init__(self, config: DynamicConvolution, frame: Frame) -> None:
        super().__init__(config, frame)
        inner = frame.heads * frame.head_dim
        self.to_taps = nn.Linear(inner, frame.heads * self.kernel, bias=False)

    def logits(self, u: Tensor) -> Tensor:
        """u (b, n, h·d) -> (b, h, n, t)."""
        return split_heads(self.to_taps(u), self.frame.heads)
