"""Pictures as tokens, and tokens as pictures.

    grey      one token a pixel, 0 to 255: ⌊255.5 · (0.2989 R + 0.587 G + 0.114 B) / 255⌋
    rgb       three tokens a pixel, its bytes R, G, B: 3,072 of 32 × 32, 12,288 of 64 × 64
    palette   one token a pixel: the number of the nearest of a few colours (`arena.data.palette`)

All in raster order, row after row. grey as TensorFlow does it, in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from weft.errors import WeftError
from weft.pictures.nearest import nearest

Form = Literal["grey", "rgb", "palette"]
FORMS: tuple[Form, ...] = ("grey", "rgb", "palette")
_WEIGHTS = np.array([0.2989, 0.587, 0.114], dtype=np.float32)


@dataclass(frozen=True, kw_only=True, eq=False)
class PictureCoding:
    """How pictures of one size are a row of tokens."""

    form: Form
    height: int
    width: int
    palette: np.ndarray | None = None  # (colours, 3) from 0 to 255, where form="palette"

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise WeftError(f"pictures are {', '.join(FORMS)}; got form={self.form!r}")
        if min(self.height, self.width) < 1:
            raise WeftError(f"pictures have 1 pixel or more; got {self.height} × {self.width}")
        if (self.palette is None) == (self.form == "palette"):
            raise WeftError("pictures of form 'palette' have a palette, and no others")
        if self.palette is not None and (self.palette.ndim != 2 or self.palette.shape[1] != 3):
            raise WeftError(f"a palette is (colours, 3); got {self.palette.shape}")

    @property
    def vocab(self) -> int:
        """Ids run from 0 to vocab − 1."""
        return 256 if self.palette is None else len(self.palette)

    @property
    def channels(self) -> int:
        """Tokens of a pixel."""
        return 3 if self.form == "rgb" else 1

    @property
    def row(self) -> int:
        """Tokens of a row of pixels: a stride of this reads the pixel above."""
        return self.width * self.channels

    @property
    def length(self) -> int:
        """Tokens of a picture."""
        return self.height * self.row

    @property
    def unit(self) -> Literal["pixel", "dimension"]:
        """What a token is, for bits per pixel or per dimension."""
        return "pixel" if self.form == "palette" else "dimension"

    def encode(self, pictures: np.ndarray) -> np.ndarray:
        """uint8 (n, height, width, 3) -> (n, length), unsigned."""
        if pictures.dtype != np.uint8 or pictures.shape[1:] != (self.height, self.width, 3):
            raise WeftError(
                f"pictures are uint8 (n, {self.height}, {self.width}, 3); got {pictures.dtype} "
                f"{pictures.shape}"
            )
        if self.form == "rgb":
            tokens = pictures
        elif self.form == "grey":
            tokens = grey(pictures)
        else:
            assert self.palette is not None  # checked
            tokens = nearest(pictures, self.palette)
        return tokens.reshape(len(pictures), self.length)

    def decode(self, tokens: np.ndarray) -> np.ndarray:
        """Ids (n, length) -> uint8 (n, height, width, 3)."""
        if tokens.ndim != 2 or tokens.shape[1] != self.length:
            raise WeftError(f"tokens are (n, {self.length}); got {tokens.shape}")
        if tokens.size and not 0 <= tokens.min() <= tokens.max() < self.vocab:
            raise WeftError(
                f"tokens are 0 to {self.vocab - 1}; got {tokens.min()} to {tokens.max()}: were "
                "they made with another palette?"
            )
        if self.palette is not None:
            colours = np.clip(np.rint(self.palette), 0, 255).astype(np.uint8)
            found = colours[tokens.astype(np.int64)]
        else:
            found = np.repeat(tokens.astype(np.uint8)[..., None], 4 - self.channels, axis=-1)
        return found.reshape(len(tokens), self.height, self.width, 3)

    def table(self) -> dict[str, Any]:
        """As plain JSON values; `coding_of` reads it."""
        own: dict[str, Any] = {"form": self.form, "height": self.height, "width": self.width}
        return own if self.palette is None else {**own, "palette": self.palette.tolist()}


def coding_of(table: dict[str, Any]) -> PictureCoding:
    """What `PictureCoding.table` wrote."""
    try:
        colours = table.get("palette")
        palette = None if colours is None else np.asarray(colours, dtype=np.float32)
        sizes = {name: int(table[name]) for name in ("height", "width")}
        return PictureCoding(form=table["form"], **sizes, palette=palette)
    except (KeyError, TypeError, ValueError, AttributeError) as cause:
        raise WeftError(f"these settings describe no pictures: {table!r:.80}") from cause


def grey(colours: np.ndarray) -> np.ndarray:
    """uint8 (..., 3) red, green, blue to uint8 (...)."""
    scaled = colours.astype(np.float32) * np.float32(1 / 255)
    mixed = np.tensordot(scaled, _WEIGHTS, axes=1)
    return (mixed * np.float32(255.5)).astype(np.uint8)
