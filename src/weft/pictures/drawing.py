"""Pictures side by side, as one PNG file.

PNG   signature, IHDR, zlib of rows that begin with the filter 0, IEND (RFC 2083)
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from weft.errors import WeftError
from weft.files import write_bytes

BACKGROUND = 128  # grey: what is not drawn yet, and the lines between pictures


def grid(pictures: Sequence[np.ndarray], columns: int, scale: int = 1, gap: int = 2) -> np.ndarray:
    """uint8 (h, w, 3) each, all of one size, in rows of `columns` -> uint8 (H, W, 3)."""
    if not len(pictures) or columns < 1 or scale < 1:
        raise WeftError(
            f"a grid has pictures, columns and a scale, each at least 1; got {len(pictures)} "
            f"pictures, columns={columns}, scale={scale}"
        )
    h, w = pictures[0].shape[0] * scale, pictures[0].shape[1] * scale
    rows = -(-len(pictures) // columns)
    shape = (rows * (h + gap) + gap, columns * (w + gap) + gap, 3)
    drawn = np.full(shape, BACKGROUND, dtype=np.uint8)
    for place, picture in enumerate(pictures):
        down, right = divmod(place, columns)
        top, left = gap + down * (h + gap), gap + right * (w + gap)
        drawn[top : top + h, left : left + w] = picture.repeat(scale, 0).repeat(scale, 1)
    return drawn


def png(picture: np.ndarray) -> bytes:
    """uint8 (h, w, 3) as the content of a PNG file."""
    height, width, _ = picture.shape
    lines = np.zeros((height, 1 + 3 * width), dtype=np.uint8)  # each begins with its filter, none
    lines[:, 1:] = picture.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)


def write_png(path: Path, picture: np.ndarray) -> None:
    """uint8 (h, w, 3) into a file, whole or not at all."""
    if path.suffix.lower() != ".png":
        raise WeftError(f"pictures are written as .png; got {path.name!r}")
    write_bytes(path, png(picture))
