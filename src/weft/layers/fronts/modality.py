"""Inputs of several kinds as one sequence, each kind through an encoder of its own.

    e_i = W_m x_i + V_m φ(p_i) + b_m          element i of modality m: numbers and Fourier features
    e_i = T_m[id_i] + V_m φ(p_i) + b_m        where its places hold ids
    P_m[i] for V_m φ(p_i)                     learned positions, where bands = 0

A *modality* is a grid of places: samples in time, pixels, letters, columns. Each place holds some
numbers, or an id. Its *encoder* joins `patch` places along each axis into one element, or runs the
convolutions of wav2vec 2.0 over a sound (`front`), and says where an element stands. b_m tells
modalities apart. All elements follow each other, (b, Σ_m elements, c).

What enters is one tensor (b, Σ_m size, 1): the numbers and ids of each modality in turn, in raster
order; a float32 holds ids up to 2^24. `pack` makes it. `valid` is False where a value is padding or
a row lacks a modality; an element is real where one of its values is.

Papers: Jaegle et al. 2021, Perceiver IO, section 3.3 and appendix on multimodal autoencoding,
https://arxiv.org/abs/2107.14795; Baevski et al. 2020, wav2vec 2.0 (`front`).
Differs from it: elements are brought to the model's width by matrices instead of padded with a
learned vector, for which b_m stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.config import config
from weft.errors import WeftError, at_least
from weft.layers.fronts.conv_features import ConvFeatures
from weft.layers.fronts.fourier import fourier_features, fourier_width

MOST_IDS = 2**24  # that a float32 tells apart


@config
class Modality:
    """What a kind of input is: a grid of places, and what each of them holds."""

    name: str = "input"
    shape: tuple[int, ...] = (1,)  # places along each axis: (samples,), (height, width), ...
    channels: int = 1  # numbers at each place
    vocab: int | None = None  # or an id below this

    def __post_init__(self) -> None:
        if not self.shape:
            raise WeftError(f"modality {self.name!r} has one axis or more; got shape=()")
        at_least(1, shape=min(self.shape), channels=self.channels, vocab=self.vocab or 1)
        if self.vocab is not None and (self.channels != 1 or self.vocab > MOST_IDS):
            raise WeftError(
                f"modality {self.name!r} holds numbers (channels) or one id a place below vocab, "
                f"at most {MOST_IDS:,}; got channels={self.channels}, vocab={self.vocab}"
            )

    @property
    def size(self) -> int:
        """Numbers, or ids, of a whole input."""
        return prod(self.shape) * self.channels


@config
class ModalityEncoder:
    """How a modality becomes elements."""

    modality: str = "input"  # its name
    patch: int = 1  # places along each axis that are one element
    bands: int = 8  # Fourier features: frequencies for each axis; 0: learned positions
    front: ConvFeatures | None = None  # convolutions over a sound, instead of patches

    def __post_init__(self) -> None:
        at_least(1, patch=self.patch)
        at_least(0, bands=self.bands)
        if self.front is not None and self.patch != 1:
            raise WeftError(f"a front makes frames itself; leave out patch, got {self.patch}")

    def grid(self, modality: Modality) -> tuple[int, ...]:
        """Elements along each axis; refuses what does not fit."""
        if self.front is not None:
            if len(modality.shape) != 1 or modality.vocab is not None:
                raise WeftError(
                    f"a front reads numbers over time; modality {modality.name!r} has shape "
                    f"{modality.shape}, vocab={modality.vocab}"
                )
            if (frames := self.front.frames(modality.shape[0])) < 1:
                raise WeftError(
                    f"a frame is made of {self.front.reach} samples; modality {modality.name!r} "
                    f"has {modality.shape[0]}: take smaller kernels and strides"
                )
            return (frames,)
        if modality.vocab is not None and self.patch != 1:
            raise WeftError(
                f"modality {modality.name!r} holds ids, each its own element: patch is 1; got "
                f"patch={self.patch}"
            )
        if any(size % self.patch for size in modality.shape):
            raise WeftError(
                f"patches of {self.patch} fill no grid of {modality.shape}, modality "
                f"{modality.name!r}; take a divisor, or cut or pad the inputs"
            )
        return tuple(size // self.patch for size in modality.shape)

    def build(self, modality: Modality, dim: int) -> ModalityReader:
        return ModalityReader(self, modality, dim)


class ModalityReader(nn.Module):
    """Values (b, size) -> elements (b, n, c), and which are real, (b, n) or None."""

    features: Tensor

    def __init__(self, config: ModalityEncoder, modality: Modality, dim: int) -> None:
        super().__init__()
        self.config, self.modality = config, modality
        self.grid = config.grid(modality)
        self.elements, self.front = prod(self.grid), None
        inputs = modality.channels * config.patch ** len(self.grid)
        if config.front is not None:
            self.front = config.front.build(modality.channels)
            self.front_norm = nn.LayerNorm(config.front.width)
            inputs = config.front.width
        if modality.vocab is not None:
            self.table = nn.Parameter(torch.randn(modality.vocab, dim))
        else:
            self.weight = nn.Parameter(torch.randn(dim, inputs) * inputs**-0.5)
        self.bias = nn.Parameter(torch.randn(dim))
        if config.bands:
            width = fourier_width(len(self.grid), config.bands)
            features = fourier_features(self.grid, config.bands)  # (n, width)
            self.register_buffer("features", features, persistent=False)
            # Squares of sines and cosines are a half on average.
            self.where = nn.Parameter(torch.randn(dim, width) * (width / 2) ** -0.5)
        else:
            self.positions = nn.Parameter(torch.randn(self.elements, dim))

    def forward(self, values: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """`valid` (b, size): values that are there."""
        make = self._patches if self.front is None else self._frames
        content, real = make(values, valid)  # (b, n, inputs), (b, n)
        if self.modality.vocab is not None:
            return F.embedding(self._ids(content[..., 0]), self.table) + self.placed(), real
        return F.linear(content.to(self.weight.dtype), self.weight) + self.placed(), real

    def placed(self) -> Tensor:
        """What tells an element's place and modality, (n, c); a query for it is made of this."""
        if not self.config.bands:
            return self.positions + self.bias
        return F.linear(self.features.to(self.where.dtype), self.where, self.bias)

    def _frames(self, values: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor | None]:
        assert self.front is not None
        x = values.unflatten(1, (-1, self.modality.channels)).to(self.weight.dtype)  # (b, s, ch)
        real = None if valid is None else valid.unflatten(1, (-1, self.modality.channels))[..., 0]
        frames, real = self.front(x, real)
        return self.front_norm(frames), real

    def _patches(self, values: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(b, size) -> (b, n, patch^axes · channels), values that are not there as 0."""
        if valid is not None:
            values = values.masked_fill(~valid, 0.0)
        return self._joined(values), None if valid is None else self._joined(valid).any(-1)

    def _joined(self, values: Tensor) -> Tensor:
        patch, axes = self.config.patch, len(self.grid)
        split = [size for count in self.grid for size in (count, patch)]
        x = values.reshape(len(values), *split, self.modality.channels)
        order = [1 + 2 * axis for axis in range(axes)] + [2 + 2 * axis for axis in range(axes)]
        return x.permute(0, *order, 1 + 2 * axes).reshape(len(values), self.elements, -1)

    def _ids(self, values: Tensor) -> Tensor:
        """(b, n) as whole numbers; those that are no ids are refused."""
        if values.device.type == "cpu" and not torch.compiler.is_compiling():
            vocab = len(self.table)
            known = (values >= 0) & (values < vocab) & (values == values.floor())
            if not bool(known.all()):
                raise WeftError(
                    f"modality {self.modality.name!r} holds ids 0 to {vocab - 1}; got "
                    f"{values[~known][0].item():g}. Mark padding with valid="
                )
        return values.long()


class Modalities(nn.Module):
    """Values of all modalities (b, total, 1) -> elements (b, n, c), and which are real."""

    def __init__(
        self, modalities: tuple[Modality, ...], encoders: Sequence[ModalityEncoder], dim: int
    ) -> None:
        super().__init__()
        self.modalities = modalities
        made = [encoder_of(each.name, encoders).build(each, dim) for each in modalities]
        self.readers = nn.ModuleList(made)

    def reader(self, name: str) -> ModalityReader:
        """That of a modality."""
        names = [each.name for each in self.modalities]
        return cast(ModalityReader, self.readers[names.index(name)])

    def forward(self, x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """`valid` (b, total) is True at values that are there."""
        total = sum(each.size for each in self.modalities)
        if x.dim() != 3 or x.shape[1:] != (total, 1):
            sizes = ", ".join(f"{each.name} {each.size:,}" for each in self.modalities)
            raise WeftError(
                f"inputs of several modalities are (b, {total}, 1), the values of {sizes} in turn "
                f"(`pack` makes them of a dict); got {tuple(x.shape)}"
            )
        sizes = [each.size for each in self.modalities]
        parts = x[..., 0].split(sizes, dim=1)
        masks = [None] * len(sizes) if valid is None else valid.split(sizes, dim=1)
        found = [
            reader(part, mask)
            for reader, part, mask in zip(self.readers, parts, masks, strict=True)
        ]
        embedded = torch.cat([e for e, _ in found], dim=1)
        if valid is None:
            return embedded, None
        return embedded, torch.cat([real for _, real in found if real is not None], dim=1)


def encoder_of(name: str, encoders: Sequence[ModalityEncoder]) -> ModalityEncoder:
    """The encoder of this modality; where none is given, the defaults."""
    own = (each for each in encoders if each.modality == name)
    return next(own, ModalityEncoder(modality=name))


def pack(
    modalities: tuple[Modality, ...], given: Mapping[str, Tensor | None]
) -> tuple[Tensor, Tensor | None]:
    """A dict of (b, *shape[, channels]) each -> x (b, total, 1) and valid (b, total) or None.

    Shorter first axes are padded at their end; None, or NaN at all places of a row, lacks.
    """
    unknown = [name for name in given if name not in {each.name for each in modalities}]
    batch = next((len(value) for value in given.values() if value is not None), 0)
    if unknown or not batch:
        names = ", ".join(each.name for each in modalities)
        raise WeftError(f"inputs are a dict of {names}, one or more of them; got {list(given)}")
    parts, masks = [], []
    for each in modalities:
        part = torch.zeros(batch, *each.shape, each.channels)
        mask = torch.zeros(batch, *each.shape, each.channels, dtype=torch.bool)
        if (value := given.get(each.name)) is not None:
            _fill(part, mask, value, each)
        parts.append(part.flatten(1))
        masks.append(mask.flatten(1))
    x, valid = torch.cat(parts, dim=1)[..., None], torch.cat(masks, dim=1)
    return x, None if bool(valid.all()) else valid


def _fill(part: Tensor, mask: Tensor, value: Tensor, modality: Modality) -> None:
    """Values into their places, and True there, but for NaN."""
    if value.dim() == part.dim() - 1:
        value = value[..., None]
    fits = value.dim() == part.dim() and value.shape[0] == len(part)
    fits = fits and value.shape[2:] == part.shape[2:] and value.shape[1] <= part.shape[1]
    if not fits:
        raise WeftError(
            f"modality {modality.name!r} is {tuple(part.shape)} (the first axis may be shorter, "
            f"one channel may be left out); got {tuple(value.shape)}"
        )
    known = ~value.float().isnan()
    part[:, : value.shape[1]] = value.float().nan_to_num(0.0)
    mask[:, : value.shape[1]] = known
