"""Pictures of the patterns that take part in a comparison: small PNGs, and an index of them.

Queries run down, keys across; a pixel is the darker the more of its pairs see each other. The
background is transparent, so that a page may be dark or light. Mixers that are no pattern have no
picture. matplotlib is not needed (`weft pattern --png` draws axes and legends with it).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weft.files import write_bytes, write_json
from weft.mixers.base.under_pattern import PatternAttention
from weft.models import Decoder, Encoder
from weft.patterns import Pattern
from weft.patterns.picture import by_pattern, density, overall, shaded

PIXELS = 256
COLOUR = (64, 128, 200)
MOST = 4  # pictures of one mechanism; further patterns of its heads and layers are left out


def draw_patterns(
    folder: Path, trunks: dict[str, Callable[[], Encoder | Decoder]], length: int
) -> list[dict[str, Any]]:
    """Draw the patterns of trunks into `folder`, and write `pictures.json`: label, file, pattern.

    A trunk that cannot be built has no picture; training it says why.
    """
    folder.mkdir(parents=True, exist_ok=True)
    index = []
    for number, (label, trunk) in enumerate(trunks.items()):
        try:
            found = patterns_of(trunk())
        except Exception:
            continue
        for part, (pattern, where) in enumerate(found[:MOST]):
            shares = density(pattern, length, PIXELS)
            file = f"{number:02d}-{part}.png"
            write_bytes(folder / file, png(shaded(shares)))
            share = f"{100 * overall(shares, length):.3g}% of pairs, {length:,} tokens"
            note = f"{pattern}{where}: {share}"
            index.append({"label": label, "file": file, "pattern": str(pattern), "note": note})
    write_json(folder / "pictures.json", index)
    return index


def patterns_of(trunk: Encoder | Decoder) -> list[tuple[Pattern, str]]:
    """The distinct patterns of a trunk, and in which layers and heads, where not in all."""
    with torch.device("meta"):
        module = getattr(trunk.build(), "stack", None)
    if module is None:
        return []  # latents
    found: dict[Pattern, list[str]] = {}
    for layer, mixer in enumerate(module.mixers):
        for part in mixer.modules():
            if isinstance(part, PatternAttention):
                for pattern, heads in by_pattern(part.pattern, part.frame.heads):
                    named = f"{heads[0]}–{heads[-1]}" if len(heads) > 1 else f"{heads[0]}"
                    found.setdefault(pattern, []).append(f"layer {layer}, heads {named}")
    if len(found) == 1:
        return [(pattern, "") for pattern in found]
    return [(pattern, f" ({'; '.join(at[:2])})") for pattern, at in found.items()]


def png(shades: np.ndarray) -> bytes:
    """Shades in 0..1 (rows, columns) as opacities of one colour."""
    pixels = np.empty((*shades.shape, 4), dtype=np.uint8)
    pixels[..., :3] = COLOUR
    pixels[..., 3] = np.round(255 * shades)
    height, width = shades.shape
    # Each line of a PNG begins with the number of its filter; 0 is none.
    lines = np.concatenate((np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)), axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(kind + data))
    return struct.pack(">I", len(data)) + kind + data + check
