"""Rows of tokens as a person reads them."""

from __future__ import annotations

import numpy as np

_SHADES = " .:-=+*#%@"


def as_text(row: np.ndarray) -> str:
    """Bytes as UTF-8 text; invalid bytes and control characters show as �."""
    text = row.astype(np.uint8).tobytes().decode("utf-8", "replace")
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)


def as_picture(row: np.ndarray, width: int) -> str:
    """Grey pixels 0 to 255, one character each, in lines of `width`; bright ones have more ink."""
    levels = row.astype(np.int64) * len(_SHADES) // 256
    text = "".join(_SHADES[level] for level in levels)
    return "\n".join(text[start : start + width] for start in range(0, len(text), width))
