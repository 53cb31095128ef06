"""Pictures that a model of pixels draws: from nothing, or below the upper rows of a picture.

Completions stand in a row: what is given, three that the model drew, the picture itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.errors import WeftError
from weft.generate.pictures import sample_pictures
from weft.generate.sampling import Sampling
from weft.pictures.coding import PictureCoding, coding_of
from weft.pictures.drawing import BACKGROUND, grid, write_png
from weft.pictures.files import read_pictures

COMPLETIONS = 3  # of each picture
COLUMNS = 8  # of samples
SIDE = 96  # pixels on the screen that a small picture is enlarged to


def draw(
    model: Any,
    out: Path,
    samples: int,
    complete: Sequence[Path],
    share: float,
    sampling: Sampling,
) -> str:
    """Write the pictures as one PNG file; what was drawn, in words."""
    usage = getattr(model, "usage", None)
    if usage is None or not usage.pictures:
        task = "" if usage is None else f" of the task {usage.task!r}"
        raise WeftError(
            f"this model{task} draws no pictures; one trained on the task pictures or pixels with "
            "objective = 'pixel_lm' does"
        )
    if bool(samples) == bool(complete):
        raise WeftError(
            "pictures are drawn from nothing (--samples 8) or completed (--complete photo.png), "
            "one of them"
        )
    if out.suffix.lower() != ".png":
        raise WeftError(f"pictures are written as .png; got --out {out}")
    coding = coding_of(usage.pictures)
    if samples:
        drawn, columns = sampled(model, coding, samples, sampling), min(samples, COLUMNS)
    else:
        drawn = completed(model, coding, complete, share, sampling)
        columns = COMPLETIONS + 2
    write_png(out, grid(drawn, columns, scale=max(1, SIDE // coding.height)))
    what = f"{samples} pictures" if samples else f"{len(complete)} completed"
    return f"{out}: {what}, {coding.height} × {coding.width} as {coding.form}"


def sampled(
    model: Any, coding: PictureCoding, count: int, sampling: Sampling, seconds: float | None = None
) -> list[np.ndarray]:
    """Pictures (h, w, 3) from nothing."""
    given = [torch.empty(0, dtype=torch.int64)] * count
    found = sample_pictures(model, given, coding.length, sampling=sampling, seconds=seconds)
    return [picture_of(row, coding) for row in found]


def completed(
    model: Any,
    coding: PictureCoding,
    paths: Sequence[Path],
    share: float,
    sampling: Sampling,
) -> list[np.ndarray]:
    """For each picture: its upper rows, completions of them, and itself."""
    pictures = read_pictures(paths, (coding.height, coding.width))
    rows = torch.from_numpy(coding.encode(pictures).astype(np.int64))  # (n, length)
    kept = round(share * coding.height) * coding.row
    if not 0 < kept < coding.length:
        raise WeftError(
            f"a share between 0 and 1 of the {coding.height} rows is given, one row or more and "
            f"not all; got {share:g}"
        )
    given = [row[:kept] for row in rows for _ in range(COMPLETIONS)]
    found = sample_pictures(model, given, coding.length, sampling=sampling)
    drawn = []
    for at, row in enumerate(rows):
        own = found[at * COMPLETIONS : (at + 1) * COMPLETIONS]
        drawn += [picture_of(each, coding) for each in (row[:kept], *own, row)]
    return drawn


def picture_of(row: Tensor, coding: PictureCoding) -> np.ndarray:
    """A row of tokens as pixels (h, w, 3); what is not there is grey."""
    tokens = np.zeros((1, coding.length), dtype=np.int64)
    tokens[0, : len(row)] = row.cpu().numpy()
    picture = coding.decode(tokens)[0]
    missing = np.arange(coding.length).reshape(coding.height, coding.width, -1) >= len(row)
    return np.where(missing, np.uint8(BACKGROUND), picture)
