"""Picture files: PNG and JPEG by Pillow, .npz by numpy. What cannot be used is said with its file.

Pictures come as uint8 (h, w, 3). Grey ones get three equal channels, palettes of a file are looked
up, and the turn that a camera noted is applied. Transparency, CMYK and 16 bits are refused: making
bytes of them is a choice that belongs to the user.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from weft.errors import WeftError

SUFFIXES = (".png", ".jpg", ".jpeg")
_WAYS_OUT = {
    "RGBA": "has an alpha channel; put it on a background first",
    "LA": "has an alpha channel; put it on a background first",
    "PA": "has an alpha channel; put it on a background first",
    "CMYK": "is in CMYK, the colours of print; convert it to RGB first",
    "YCCK": "is in CMYK, the colours of print; convert it to RGB first",
    "LAB": "is in Lab; convert it to RGB first",
    "F": "holds floating-point numbers; scale it to 8 bits first",
}


def read_picture(path: Path) -> np.ndarray:
    """uint8 (h, w, 3) of a PNG or JPEG file."""
    image_of, errors = _pillow()
    if path.suffix.lower() not in SUFFIXES:
        raise WeftError(f"{path}: pictures are {', '.join(SUFFIXES)} files, or one .npz of many")
    if not path.is_file():
        raise WeftError(f"there is no picture {path}")
    try:
        with warnings.catch_warnings(), image_of.open(path) as image:
            warnings.simplefilter("error")
            _check(image, path)
            image.load()
            from PIL import ImageOps

            return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    except errors as cause:
        raise WeftError(f"{path} cannot be read as a picture: {cause}") from cause


def _check(image: Any, path: Path) -> None:
    if image.mode in _WAYS_OUT or image.mode.startswith("I"):
        why = _WAYS_OUT.get(image.mode, "has 16 bits or more a channel; scale it to 8 bits first")
        raise WeftError(f"{path} {why} (mode {image.mode})")
    if "transparency" in image.info:
        raise WeftError(f"{path} has transparent pixels; put it on a background first")
    if getattr(image, "n_frames", 1) > 1:
        raise WeftError(f"{path} has {image.n_frames} frames; give one picture a file")


def _pillow() -> tuple[Any, tuple[type[Exception], ...]]:
    """Pillow's module of images, and what it raises for broken files."""
    try:
        from PIL import Image
    except ImportError as cause:
        raise WeftError(
            "reading PNG and JPEG files needs Pillow: pip install pillow; an .npz of "
            "pixels needs nothing"
        ) from cause
    bombs = (Image.DecompressionBombWarning, Image.DecompressionBombError)
    return Image, (OSError, ValueError, SyntaxError, UserWarning, *bombs)


def read_pictures(paths: Sequence[Path], size: tuple[int, int] | None = None) -> np.ndarray:
    """uint8 (n, h, w, 3) of files that are all of one size: `size` (h, w), or the first one's."""
    found: np.ndarray | None = None
    for place, path in enumerate(paths):
        picture = read_picture(path)
        wanted = size or (picture.shape[:2] if found is None else found.shape[1:3])
        if picture.shape[:2] != tuple(wanted):
            of = "the model takes" if size else f"{paths[0]} is"
            raise WeftError(
                f"{path} is {_shape(picture.shape)}, and {of} {_shape(wanted)} (height × width): "
                "scale or cut all pictures to one size first"
            )
        if found is None:
            found = np.empty((len(paths), *picture.shape), dtype=np.uint8)
        found[place] = picture
    if found is None:
        raise WeftError("there are no pictures to read")
    return found


def _shape(shape: Sequence[int]) -> str:
    return f"{shape[0]} × {shape[1]}"


def read_npz(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """Pictures x as uint8 (n, h, w, 3), and labels y (n,) where the file has them."""
    try:
        with np.load(path, allow_pickle=False) as file:
            pictures = file["x"]
            labels = file["y"] if "y" in file.files else None
    except (OSError, ValueError, KeyError, BadZipFile, EOFError) as cause:
        raise WeftError(
            f"{path} is not an npz file of pictures x (and labels y): {cause}"
        ) from cause
    if pictures.dtype != np.uint8 or pictures.ndim not in (3, 4) or not pictures.size:
        raise WeftError(
            f"{path}: x is uint8 (n, h, w) or (n, h, w, 3), one picture or more; got "
            f"{pictures.dtype} {pictures.shape}"
        )
    if pictures.ndim == 3:
        pictures = np.repeat(pictures[..., None], 3, axis=-1)
    if pictures.shape[-1] != 3:
        what = "an alpha channel" if pictures.shape[-1] == 4 else f"{pictures.shape[-1]} channels"
        raise WeftError(f"{path}: x has {what}; pictures are grey (n, h, w) or RGB (n, h, w, 3)")
    if labels is not None and (labels.ndim != 1 or len(labels) != len(pictures)):
        raise WeftError(
            f"{path}: y has one label for each of {len(pictures)} pictures; got {labels.shape}"
        )
    if labels is not None and labels.dtype.kind not in "iuU":
        raise WeftError(f"{path}: y is whole numbers or text; got {labels.dtype}")
    return pictures, labels
