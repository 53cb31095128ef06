"""Raw samples to frames: the convolutions in front of wav2vec 2.0 and HuBERT.

    h_0 = x,    h_i = gelu(norm(conv_i(h_(i−1)))),    each conv with a kernel, a stride, no padding
    frames of n samples = ⌊(n − reach) / hop⌋ + 1,    hop = Π strides

Seven convolutions of 512 channels with the default kernels and strides give one frame for each 320
samples that has seen 400 of them: 20 and 25 ms at 16 kHz. `norm="group"` normalises each channel of
the first convolution over time (wav2vec 2.0 base), `norm="layer"` each frame of every convolution
over its channels (large, with biases).

With padding, frames of a row are those that its own samples make, and statistics over time are
taken over them alone, so that a row gives what it gives by itself.

Papers: Baevski et al. 2020, wav2vec 2.0, section 4.2, https://arxiv.org/abs/2006.11477; Hsu et al.
2021, HuBERT, https://arxiv.org/abs/2106.07447
Differs: the released base models normalise over padding too, and so depend on it.
"""

from __future__ import annotations

from math import prod
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.config import config
from weft.errors import WeftError

EPS = 1e-5


@config
class ConvFeatures:
    """Convolutions over samples, each shorter by its stride."""

    width: int = 512  # channels of each convolution
    kernels: tuple[int, ...] = (10, 3, 3, 3, 3, 2, 2)
    strides: tuple[int, ...] = (5, 2, 2, 2, 2, 2, 2)
    norm: Literal["group", "layer"] = "group"
    bias: bool = False

    def __post_init__(self) -> None:
        if len(self.kernels) != len(self.strides) or not self.kernels:
            raise WeftError(
                "each convolution has a kernel and a stride, and there is at least one; "
                f"got kernels={self.kernels}, strides={self.strides}"
            )
        if min(*self.kernels, *self.strides, self.width) < 1:
            raise WeftError(
                "width, kernels and strides are at least 1; got "
                f"width={self.width}, kernels={self.kernels}, strides={self.strides}"
            )
        if self.norm not in ("group", "layer"):
            raise WeftError(f"norm is 'group' or 'layer'; got {self.norm!r}")

    @property
    def hop(self) -> int:
        """Samples from one frame to the next."""
        return prod(self.strides)

    @property
    def reach(self) -> int:
        """Samples that a frame has seen."""
        found, hop = 1, 1
        for kernel, stride in zip(self.kernels, self.strides, strict=True):
            found += (kernel - 1) * hop
            hop *= stride
        return found

    def frames(self, samples: int) -> int:
        """Frames of this many samples."""
        return max(0, (samples - self.reach) // self.hop + 1)

    def build(self, channels: int = 1) -> FeatureExtractor:
        """The module, for samples of so many channels."""
        return FeatureExtractor(self, channels)


class FeatureExtractor(nn.Module):
    """Samples (b, n, channels) -> frames (b, m, width) and which are real, (b, m) or None."""

    def __init__(self, config: ConvFeatures, channels: int) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList()
        for i, (kernel, stride) in enumerate(zip(config.kernels, config.strides, strict=True)):
            inputs = channels if i == 0 else config.width
            conv = nn.Conv1d(inputs, config.width, kernel, stride, bias=config.bias)
            nn.init.kaiming_normal_(conv.weight)
            self.layers.append(conv)
        normed = len(config.kernels) if config.norm == "layer" else 1
        self.scales = nn.ParameterList(torch.ones(config.width) for _ in range(normed))
        self.shifts = nn.ParameterList(torch.zeros(config.width) for _ in range(normed))

    def forward(self, x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Real samples come first in each row, where there is padding."""
        self.check(x)
        if valid is not None:
            x = x.masked_fill(~valid[..., None], 0.0)
        h = x.mT  # (b, channels, n)
        counts = None if valid is None else valid.sum(1)  # (b,)
        for i, layer in enumerate(self.layers):
            h = layer(h)
            counts = None if counts is None else self.after(i, counts)
            if i < len(self.scales):
                h = self.normed(i, h, counts)
            h = F.gelu(h)
        frames = h.mT  # (b, m, width)
        if counts is None:
            return frames, None
        real = torch.arange(frames.shape[1], device=x.device) < counts[:, None]  # (b, m)
        return frames.masked_fill(~real[..., None], 0.0), real

    def after(self, i: int, counts: Tensor) -> Tensor:
        """Places (b,) that are left after convolution i."""
        kernel, stride = self.config.kernels[i], self.config.strides[i]
        return ((counts - kernel).div(stride, rounding_mode="floor") + 1).clamp(min=0)

    def normed(self, i: int, h: Tensor, counts: Tensor | None) -> Tensor:
        """h (b, width, m): over channels, or over the real places of each channel."""
        scale, shift = self.scales[i], self.shifts[i]
        if self.config.norm == "layer":
            return F.layer_norm(h.mT, scale.shape, scale, shift, EPS).mT
        if counts is None:
            return F.group_norm(h, len(scale), scale, shift, EPS)
        real = torch.arange(h.shape[2], device=h.device) < counts[:, None]  # (b, m)
        wide = h.to(torch.promote_types(h.dtype, torch.float32))
        share = real.to(wide.dtype) / counts.clamp(min=1)[:, None]  # (b, m)
        mean = (wide * share[:, None]).sum(2, keepdim=True)  # (b, width, 1)
        centred = wide - mean
        variance = (centred.square() * share[:, None]).sum(2, keepdim=True)
        unit = centred * torch.rsqrt(variance + EPS)
        return (unit * scale[:, None] + shift[:, None]).to(h.dtype)

    def check(self, x: Tensor) -> None:
        """Refuse sounds that make no frame."""
        if x.shape[1] < self.config.reach:
            raise WeftError(
                f"a frame is made of {self.config.reach} samples; got {x.shape[1]}: leave out "
                "sounds this short, or take smaller kernels and strides"
            )
