"""FNet: the transform of real numbers, over the channels first and of half the frequencies.

    Re(FFT_n(FFT_c(x))) = Re(FFT_n(y)),   y_j = FFT_c(x) at j ≤ c/2,   y_{c−j} = conj(y_j)

The real part at channel c − j and token i is that at channel j and token −i: half the transforms
over the sequence say everything. In half precision Transformers' own does not run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.interop.hf.twins.lean import Twin, norm
from weft.interop.hf.twins.registry import (
    Family,
    Make,
    Pass,
    bert_like,
    forward_by,
    noted,
    register,
)


class FourierTwin(Twin):
    """The forward of FNet's transform."""

    def __init__(self, theirs: Any, shared: Pass) -> None:
        self.theirs = theirs

    def __call__(self, hidden_states: Tensor) -> tuple[Tensor]:
        """(b, n, c) -> (b, n, c), in a tuple."""
        return (_Fourier.apply(hidden_states),)


class _Fourier(torch.autograd.Function):
    """The transform is symmetric, so it is its own gradient: nothing is stored."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return half_transform(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return _Fourier.apply(dy)


def half_transform(x: Tensor) -> Tensor:
    """Re(FFT(FFT(x))) of real x (b, n, c)."""
    c = x.shape[2]
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    y = torch.fft.fft(torch.fft.rfft(wide, dim=2), dim=1).real  # (b, n, c / 2 + 1)
    rest = y[:, :, 1 : (c + 1) // 2]  # channels c − 1, c − 2, ... at token 0, −1, ...
    mirrored = rest.flip(1, 2).roll(1, 1)
    return torch.cat((y, mirrored), dim=2).to(x.dtype)


class _SumTwin(Twin):
    """Residual and norm after the transform, which has no dropout."""

    def __init__(self, theirs: Any, notes: Any) -> None:
        self.theirs, self.notes = theirs, notes

    def __call__(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        """(b, n, c) twice -> (b, n, c)."""
        return norm(self.notes, self.theirs.LayerNorm, input_tensor + hidden_states)


_AROUND: dict[str, Make] = {
    **bert_like("FNet", "feed_forward_chunk"),
    "FNetBasicOutput": noted(_SumTwin),
}
register("fnet", Family(("FNet",), {"FNetBasicFourierTransform": forward_by(FourierTwin)}, _AROUND))
