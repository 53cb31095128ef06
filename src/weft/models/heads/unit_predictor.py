"""Which unit of sound stands at each frame: HuBERT's head on an encoder of raw samples.

    h = stack(embed(f)),   f = features(x), with a learned vector in place of hidden frames
    score of unit u at frame i = cos(A h_i, e_u) / τ

Paper: Hsu et al. 2021, HuBERT, section II-C, https://arxiv.org/abs/2106.07447
Differs: the vector stands in for a frame before the embedding's projection, as wide as the front.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import WeftError
from weft.layers.padding import real_tokens
from weft.models.registry import MODELS, TrunkModel
from weft.models.trunks.waveform import Waveform


@MODELS.register("unit_predictor")
@dataclass(frozen=True, kw_only=True)
class UnitPredictor:
    """Scores of units for each frame of a sound."""

    trunk: Waveform
    units: int
    width: int = 256  # of the space in which frames and units are compared
    temperature: float = 0.1

    def __post_init__(self) -> None:
        if self.units < 2 or self.width < 1 or self.temperature <= 0:
            raise WeftError(
                "there are 2 units or more, width is at least 1, temperature above 0; got "
                f"units={self.units}, width={self.width}, temperature={self.temperature}"
            )

    def build(self) -> UnitPredictorModule:
        return UnitPredictorModule(self)


class UnitPredictorModule(TrunkModel):
    """Samples (b, n, 1) -> scores (b, frames, units)."""

    config: UnitPredictor

    def __init__(self, config: UnitPredictor) -> None:
        super().__init__()
        self.config = config
        self.trunk = config.trunk.build()
        self.hidden_frame = nn.Parameter(torch.rand(config.trunk.front.width))
        self.project = nn.Linear(config.trunk.dim, config.width)
        self.units = nn.Parameter(torch.randn(config.units, config.width))

    def forward(
        self,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        attention_mask: Tensor | None = None,
        hidden: Tensor | None = None,
    ) -> Tensor:
        """`hidden` (b, frames): which frames are hidden; None: none."""
        valid = real_tokens(x, valid, attention_mask)
        frames, real = self.trunk.features(x, valid)  # (b, m, width)
        if hidden is not None:
            frames = torch.where(hidden[..., None], self.hidden_frame.to(frames.dtype), frames)
        h = self.project(self.trunk.read_frames(frames, real)[1])  # (b, m, width)
        return F.normalize(h, dim=-1) @ F.normalize(self.units, dim=-1).mT / self.config.temperature
