"""Waveform: an encoder of raw samples, whose convolutions make frames that the stack reads.

    f = features(x),    y = stack(embed(norm(f))),    a frame for each hop of samples

The front is that of wav2vec 2.0 and HuBERT (`weft.layers.fronts.conv_features`); any mixer and any
head on documents follows. `embedding.channels` are those of the samples, 1; positions count frames.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from weft.errors import WeftError
from weft.layers.fronts.conv_features import ConvFeatures
from weft.layers.marks import Marks, refuse_marks
from weft.layers.padding import left_align
from weft.models.registry import MODELS
from weft.models.trunks.encoder import Encoder, EncoderModule


@MODELS.register("waveform")
@dataclass(frozen=True, kw_only=True)
class Waveform(Encoder):
    """An encoder behind convolutions that shorten raw samples."""

    front: ConvFeatures = field(default_factory=ConvFeatures)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.embedding.vocab is not None or self.embedding.categories:
            raise WeftError(
                "a waveform is numbers, embedding.channels=1; bytes of sound are tokens, which "
                f"an encoder reads: got vocab={self.embedding.vocab}"
            )

    @property
    def inner(self) -> Encoder:
        """The encoder of frames."""
        frame = self.stack.frame
        if frame.length is not None:
            frame = dataclasses.replace(frame, length=max(1, self.front.frames(frame.length)))
        return Encoder(
            embedding=dataclasses.replace(self.embedding, channels=self.front.width),
            stack=dataclasses.replace(self.stack, frame=frame),
        )

    def build(self) -> WaveformModule:
        return WaveformModule(self)


class WaveformModule(EncoderModule):
    """Samples (b, n, 1) -> (b, frames, c)."""

    def __init__(self, config: Waveform) -> None:
        super().__init__(config.inner)
        self.config: Waveform = config
        self.front = config.front.build(config.embedding.channels or 1)
        self.front_norm = nn.LayerNorm(config.front.width)

    def features(self, x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Frames (b, m, width) before they are embedded, and which are real, (b, m) or None."""
        if valid is not None:
            x, valid, _ = left_align(x, valid)
        frames, real = self.front(x, valid)
        return self.front_norm(frames), real

    def rows_valid(self, valid: Tensor | None) -> Tensor | None:
        """Which frames are real, (b, m), of rows whose samples are so (b, n)."""
        if valid is None:
            return None
        front = self.config.front
        counts = (valid.sum(1) - front.reach).div(front.hop, rounding_mode="floor") + 1  # (b,)
        return torch.arange(front.frames(valid.shape[1]), device=valid.device) < counts[:, None]

    def read(
        self,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
        marks: Marks | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The registers (b, g, c) and the frames (b, m, c) after the stack; padding yields 0."""
        refuse_marks(marks, "marks are of samples, and a stack behind convolutions reads frames")
        return self.read_frames(*self.features(x, valid))

    def read_frames(self, frames: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        """What `read` makes of the frames that `features` gave, or of others (b, m, width)."""
        return super().read(frames, valid=real)

    def read_first(
        self, x: Tensor, *, valid: Tensor | None = None, marks: Marks | None = None
    ) -> Tensor:
        """The first register after the stack, (b, c)."""
        refuse_marks(marks, "marks are of samples, and a stack behind convolutions reads frames")
        frames, real = self.features(x, valid)
        return super().read_first(frames, valid=real)

    def states(
        self, x: Tensor, *, valid: Tensor | None = None, marks: Marks | None = None
    ) -> list[Tensor]:
        """What enters the first layer and what leaves each: (b, m, c) of frames."""
        refuse_marks(marks, "marks are of samples, and a stack behind convolutions reads frames")
        frames, real = self.features(x, valid)
        return super().states(frames, valid=real)
