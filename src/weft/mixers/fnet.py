"""FNet: tokens are mixed by a Fourier transform over the sequence and the channels.

    y = Re(FFT_sequence(FFT_channels(x)))

No parameters, no heads. A single token is transformed over its channels alone. The transform of a
sequence depends on its length, so each row of a padded batch is transformed over its own real
tokens: rows are grouped by length, one transform per length. float16 and bfloat16 are computed
in float32; float16 results beyond its range are clipped (`norm="ortho"` keeps the scale of x).

Time O(n·c·log(n·c)), memory O(n·c).

Paper: Lee-Thorp et al. 2021, FNet, section 3.2, https://arxiv.org/abs/2105.03824
Differs from it: padding is left out instead of mixed in; the frame's attention dropout and heads
have no place in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from weft.mixers.base import MIXERS, Frame, Mixer, Traits

Norm = Literal["none", "ortho"]


@MIXERS.register("fnet")
@dataclass(frozen=True, kw_only=True)
class FNet:
    """Fourier mixing."""

    norm: Norm = "none"  # ortho: divide by √(n·c), which preserves the scale of x

    traits: ClassVar[Traits] = Traits(
        family="mixing",
        paper="Lee-Thorp et al. 2021, https://arxiv.org/abs/2105.03824",
        time="n·c·log(n·c)",
        memory="n·c",
        context_parallel="channels to ranks and back (all-to-all)",
        compiles=False,
        note="every output of the transform reads the whole of one sequence, and the rows of a "
        "padded batch are grouped by their length, which no fixed graph can do",
        tensor="it has no heads and no parameters",
    )

    def build(self, frame: Frame) -> FourierMixing:
        return FourierMixing(self, frame)


class FourierMixing(Mixer):
    """y = Re(FFT(FFT(x))), per row over its real tokens."""

    def __init__(self, config: FNet, frame: Frame) -> None:
        super().__init__(config, frame)
        self.refuse_positions("fnet has no queries and keys: its transform knows the order")

    def mix(
        self,
        x: Tensor,
        valid: Tensor | None,
        context: Tensor | None,
        context_valid: Tensor | None,
    ) -> Tensor:
        """One transform per length that occurs."""
        if valid is None:
            return fourier(x, self.config.norm)
        lengths = valid.sum(1)  # (b,)
        y = torch.zeros_like(x)
        for length in lengths.unique().tolist():
            rows = lengths == length  # (b,)
            y[rows, :length] = fourier(x[rows, :length], self.config.norm)
        return y

    def reference(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
    ) -> Tensor:
        """Re(W_n x W_c) with the matrices W = C − iS of the discrete transform, row by row."""
        y = torch.zeros_like(x)
        for row in range(len(x)):
            n = x.shape[1] if valid is None else int(valid[row].sum())
            (cos_n, sin_n), (cos_c, sin_c) = _waves(n, x), _waves(x.shape[2], x)
            y[row, :n] = cos_n @ x[row, :n] @ cos_c - sin_n @ x[row, :n] @ sin_c
            if self.config.norm == "ortho" and n:
                y[row, :n] /= (n * x.shape[2]) ** 0.5
        return y


def fourier(x: Tensor, norm: Norm) -> Tensor:
    """Re of the transform over the last two axes: (b, n, c) -> (b, n, c)."""
    if not x.numel():
        return x
    work = x.to(torch.promote_types(x.dtype, torch.float32))
    y = torch.fft.fft2(work, norm="ortho" if norm == "ortho" else "backward").real
    if x.dtype == torch.float16:
        y = y.clamp(torch.finfo(x.dtype).min, torch.finfo(x.dtype).max)
    return y.to(x.dtype)


def _waves(size: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of 2πjk / size, (size, size)."""
    index = torch.arange(size, device=like.device)
    turns = (index[:, None] * index % max(size, 1)).double() / max(size, 1)  # (size, size)
    angle = 2 * torch.pi * turns
    return angle.cos().to(like.dtype), angle.sin().to(like.dtype)
