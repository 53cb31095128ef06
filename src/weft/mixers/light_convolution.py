"""Light convolution: a token is a fixed, learned mean of its neighbours, one per head.

    u = glu(W_in x),   y_i = sum_s softmax_s(w_head)_s u_(i + s − before),   out = W_out y

kernel 1 passes u on. The rest is in `convolution_mixer.py`.
Time O(n (kernel + c) c), memory O(n kernel). Decoding keeps kernel − 1 inputs of c numbers.

Paper: Wu et al. 2019, section 3, https://arxiv.org/abs/1901.10430
Differs from it: a head is a run of neighbouring channels; the kernel may be even.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from weft.mixers.base import MIXERS, Frame, Traits
from weft.mixers.base.convolution import ConvolutionConfig, ConvolutionMixer


@MIXERS.register("light_convolution")
@dataclass(frozen=True, kw_only=True)
class LightConvolution(ConvolutionConfig):
    """Depthwise convolution with normalised weights, shared within a head."""

    traits: ClassVar[Traits] = Traits(
        family="mixing",
        paper="Wu et al. 2019, https://arxiv.org/abs/1901.10430",
        time="n w c",
        memory="n w",
        context_parallel="tokens that taps reach at each border",
        state="c·(w − 1)",
        causal=True,
        note="a convolution runs along one sequence",
        tensor="its heads share out the channels of the model",
    )

    def build(self, frame: Frame) -> LightConvolutionMixing:
        return LightConvolutionMixing(self, frame)


class LightConvolutionMixing(ConvolutionMixer):
    """The same taps for every token."""

    def __init__(self, config: LightConvolution, frame: Frame) -> None:
        super().__init__(config, frame)
        weight = torch.empty(frame.heads, self.kernel)
        self.weight = nn.Parameter(nn.init.xavier_uniform_(weight))  # (h, t)

    def logits(self, u: Tensor) -> Tensor:
        """(1, h, 1, t)."""
        return self.weight[None, :, None]
