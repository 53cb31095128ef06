"""The convolutions of the Evolved Transformer: a wide and a narrow branch, summed, then a third.

    encoder:  u = norm(relu(W x) + relu(conv_3 x)),       out = sep_9 u
              W to 4c, conv_3 to c/2 channels, sep_9 to c/2
    decoder:  u = norm(relu(sep_11 x) + sep_7 x),         out = sep_7 u
              sep_11 to 2c, the first sep_7 to c/2, the last to c

Narrow results are filled up with zeros: a branch to the width of the other, out to c channels.
sep_k is a convolution of k taps in each channel and then a matrix. Beyond the ends and at padding
inputs are 0; where the future is hidden, taps end at the token itself, else they are centred.
Time O(n c²), memory O(n c). Decoding keeps the inputs that taps still reach.

Paper: So et al. 2019, section 4 and figure 3, https://arxiv.org/abs/1901.11117
Differs from it: `cell` None takes the encoder's where both directions are read, else the decoder's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import Unsupported
from weft.mixers.base import MIXERS, Frame, Mixer, State, Traits


class CellSizes(NamedTuple):
    """The sizes of a cell: taps, and channels relative to c."""

    wide: int  # taps of the wide branch; 1: a matrix
    expansion: int  # channels of the wide branch
    narrow: int  # taps of the narrow branch
    last: int  # taps of the last convolution
    share: float  # channels of out that are not 0


CELLS = {
    "encoder": CellSizes(wide=1, expansion=4, narrow=3, last=9, share=0.5),
    "decoder": CellSizes(wide=11, expansion=2, narrow=7, last=7, share=1.0),
}


@MIXERS.register("evolved_convolution")
@dataclass(frozen=True, kw_only=True)
class EvolvedConvolution:
    """Branched convolutions of a cell that was found by search."""

    cell: Literal["encoder", "decoder"] | None = None  # None: by direction

    name: ClassVar[str]  # its key in the registry

    @property
    def traits(self) -> Traits:
        """The cells have kernels of different widths."""
        return Traits(
            family="mixing",
            paper="So et al. 2019, https://arxiv.org/abs/1901.11117",
            time="n c²",
            memory="n c",
            context_parallel="tokens that taps reach at each border",
            state="34·c" if self.cell == "encoder" else "22·c",
            causal=True,
            note="a convolution runs along one sequence",
            tensor="it normalises over all hidden channels between its branches",
        )

    def build(self, frame: Frame) -> EvolvedConvolutionMixing:
        return EvolvedConvolutionMixing(self, frame)

    @classmethod
    def variants(cls) -> tuple[EvolvedConvolution, ...]:
        """Settings that the contract suite tests."""
        return cls(), cls(cell="encoder"), cls(cell="decoder")


class Convolution(nn.Module):
    """`taps` inputs to one output; separable: each channel by itself, then a matrix, if any."""

    def __init__(
        self, inputs: int, outputs: int, taps: int, *, causal: bool, separable: bool, bias: bool
    ) -> None:
        super().__init__()
        self.taps, self.before = taps, taps - 1 if causal else (taps - 1) // 2
        self.groups = inputs if separable else 1
        made = nn.Conv1d(inputs, inputs if separable else outputs, taps, groups=self.groups)
        self.weight = made.weight  # (outputs, inputs / groups, taps)
        self.bias = made.bias if bias and not separable else None
        matrix = separable and outputs
        self.matrix = nn.Linear(inputs, outputs, bias=bias) if matrix else nn.Identity()

    def forward(self, x: Tensor, new: int) -> Tensor:
        """(b, m, inputs) -> its last `new` rows (b, n, outputs); preceded by zeros."""
        padded = F.pad(x.transpose(1, 2), (self.before, self.taps - 1 - self.before))
        y = F.conv1d(padded, self.weight, self.bias, groups=self.groups).transpose(1, 2)
        return self.matrix(y[:, y.shape[1] - new :])

    def plainly(self, x: Tensor) -> Tensor:
        """The same, tap by tap: (b, n, inputs) -> (b, n, outputs)."""
        n, y = x.shape[1], torch.zeros((), dtype=x.dtype, device=x.device)
        wide = F.pad(x, (0, 0, self.before, self.taps - 1 - self.before))
        for s in range(self.taps):
            rows, tap = wide[:, s : s + n], self.weight[..., s]
            y = y + (rows * tap[:, 0] if self.groups > 1 else rows @ tap.transpose(0, 1))
        return self.matrix(y if self.bias is None else y + self.bias)


@dataclass(kw_only=True)
class EvolvedState(State):
    """Inputs that later tokens still read: of the branches, and of the last convolution."""

    x: Tensor  # (b, m, c)
    u: Tensor  # (b, m, wide)


class EvolvedConvolutionMixing(Mixer):
    """Two branches, a norm, a separable convolution."""

    def __init__(self, config: EvolvedConvolution, frame: Frame) -> None:
        super().__init__(config, frame)
        if frame.positions is not None or frame.kv_heads != frame.heads:
            raise Unsupported(
                f"{config.name} has neither queries nor keys; got positions={frame.positions}, "
                f"kv_heads={frame.kv_heads}: use None for both"
            )
        c, kind = frame.dim, config.cell or ("decoder" if frame.causal else "encoder")
        self.cell, same = CELLS[kind], {"causal": frame.causal, "bias": frame.bias}
        wide, half = self.cell.expansion * c, max(1, c // 2)
        outputs = c if self.cell.share == 1.0 else half
        simple = self.cell.wide == 1
        self.wide = Convolution(c, wide, self.cell.wide, separable=not simple, **same)
        self.narrow = Convolution(c, half, self.cell.narrow, separable=not simple, **same)
        self.norm = nn.LayerNorm(wide)
        self.last = Convolution(wide, 0, self.cell.last, separable=True, **same)
        self.to_out = nn.Linear(wide, outputs, bias=frame.bias)

    def mix(
        self,
        x: Tensor,
        valid: Tensor | None,
        context: Tensor | None,
        context_valid: Tensor | None,
    ) -> Tensor:
        """All tokens at once."""
        n, x = x.shape[1], _real(x, valid)
        u = _real(self._sum(self.wide(x, n), self.narrow(x, n)), valid)
        return self._filled(self.last(u, n))

    def reference(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
    ) -> Tensor:
        """Tap by tap: shift, multiply, add."""
        x = _real(x, valid)
        u = _real(self._sum(self.wide.plainly(x), self.narrow.plainly(x)), valid)
        return self._filled(self.last.plainly(u))

    def _sum(self, wide: Tensor, narrow: Tensor) -> Tensor:
        narrow = narrow.relu() if self.cell.wide == 1 else narrow
        wide = wide.relu()
        return self.norm(wide + F.pad(narrow, (0, wide.shape[-1] - narrow.shape[-1])))

    def _filled(self, y: Tensor) -> Tensor:
        y = self.to_out(y)
        return F.pad(y, (0, self.frame.dim - y.shape[-1]))

    def start(self, batch: int = 1) -> EvolvedState:
        """No inputs."""
        self._need_causal()
        made = self.norm.weight.new_zeros
        return EvolvedState(
            x=made(batch, 0, self.frame.dim), u=made(batch, 0, self.norm.normalized_shape[0])
        )

    def step(self, x: Tensor, state: EvolvedState) -> tuple[Tensor, EvolvedState]:
        """Convolve the new tokens after the remembered ones."""
        self._need_causal()
        n, all_x = x.shape[1], torch.cat((state.x, x), dim=1)
        u = self._sum(self.wide(all_x, n), self.narrow(all_x, n))
        all_u = torch.cat((state.u, u), dim=1)
        y = self._filled(self.last(all_u, n))
        return y, EvolvedState(
            position=state.position + n,
            x=_tail(all_x, self._reach - 1),
            u=_tail(all_u, self.cell.last - 1),
        )

    @property
    def _reach(self) -> int:
        return max(self.cell.wide, self.cell.narrow)

    def state_size(self, tokens: int) -> int:
        """At most taps − 1 inputs of each kind."""
        self._need_causal()
        before = min(tokens, self._reach - 1) * self.frame.dim
        return before + min(tokens, self.cell.last - 1) * self.norm.normalized_shape[0]


def _real(x: Tensor, valid: Tensor | None) -> Tensor:
    return x if valid is None else x.masked_fill(~valid[..., None], 0.0)


def _tail(x: Tensor, rows: int) -> Tensor:
    return x[:, max(0, x.shape[1] - rows) :].clone()
