"""Pathfinder images: do two discs sit on the two ends of one dashed curve?

An image holds two long dashed curves ("snakes") that do not touch, shorter ones that distract, and
two discs on curve ends. Label 1: both discs are on one long snake. Label 0: one on each.

    P(direction) ∝ cos²(min(continuity · turn, π/2)) · [the dash fits]

A direction is a pixel of the circle of radius length + margin around the pivot, the middle of the
gap between two dashes; pivots are about length + 2 margin apart. A dash fits if it and the `margin`
around it are inside the border and share nothing with those of the other dashes, save the one it
grows out of. Two snakes grow in turns from seeds `seed_distance` apart, and start again when one is
stuck; a distractor is tried a few times and may be left out. Dashes and discs are drawn on a grid
that is finer by `antialias` and reduced with Lanczos-3; where they meet, the brighter one counts.

Time per image: as many growths as it takes. Two whole snakes of 14 dashes come out of one growth in
285 at size 32, 3,900 at 64, 90 or 1,400 (margin 2 or 3) at 128, and 7 at 256.

Task: Linsley et al. 2018, https://arxiv.org/abs/1805.08315. Settings: Long Range Arena, Tay et al.
2020, https://arxiv.org/abs/2011.04006, as its data builders note them (`data/pathfinder.py` there).
Differs from the generator used there, https://github.com/drewlinsley/pathfinder: other random
numbers; long snakes never touch (there, the newest dash of one was unseen by the other);
distractors are as bright as long snakes (there brighter at size 32, the dash contrast being left
out); values are cut at 255 (there, each image is scaled to its brightest pixel).
"""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.arena.tasks.pathfinder.plan import END, plan_of
from weft.errors import WeftError

_CHUNK = 64  # images that a thread draws at a time, at most
_MANY = 100  # images that take long without numba

# What a size sets besides the defaults of `Drawing`.
_PUBLISHED: dict[int, dict[str, Any]] = {
    32: {
        "seed_distance": 7,
        "margins": (1,),
        "disc_radius": 1.5,
        "dash_thickness": 0.5,
        "dash_length": 2,
        "continuity": 1.0,
        "snake_contrast": 2.0,
        "dash_contrast": 0.75,
    },
    64: {
        "seed_distance": 12,
        "margins": (1,),
        "disc_radius": 2.5,
        "dash_thickness": 1.0,
        "snake_contrast": 0.8,
    },
    128: {
        "seed_distance": 20,
        "margins": (2, 3),
        "disc_radius": 3.0,
        "dash_thickness": 1.5,
        "snake_contrast": 0.9,
    },
    256: {
        "seed_distance": 27,
        "margins": (3,),
        "disc_radius": 5.0,
        "dash_thickness": 2.0,
        "padding": 22,
    },
}
_DISTRACTING_DASHES = {32: 20, 64: 22, 128: 35, 256: 30}


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """How images are drawn; lengths in pixels. `Drawing.of` gives the published settings."""

    size: int
    contour_length: int  # dashes of a long snake
    distractor_length: int  # dashes of a distractor
    distractors: int  # at most
    seed_distance: int
    margins: tuple[int, ...]  # one is drawn for each image
    disc_radius: float
    dash_thickness: float
    dash_length: int = 5
    continuity: float = 1.8  # larger is straighter
    snake_contrast: float = 1.0
    dash_contrast: float = 1.0
    padding: int = 1  # pixels along the border that stay free
    antialias: int = 2

    def __post_init__(self) -> None:
        least = {"contour_length": 2, "distractor_length": 1, "distractors": 0, "padding": 0}
        for name in ("seed_distance", "dash_length", "antialias"):
            least[name] = 1
        for name, lowest in least.items():
            if getattr(self, name) < lowest:
                raise WeftError(f"{name} is at least {lowest}; got {getattr(self, name)}")
        for name in ("disc_radius", "dash_thickness", "snake_contrast", "dash_contrast"):
            if not getattr(self, name) > 0:
                raise WeftError(f"{name} is above 0; got {getattr(self, name)}")
        if not self.continuity >= 0:
            raise WeftError(f"continuity is at least 0; got {self.continuity}")
        margins = self.margins
        if not isinstance(margins, tuple) or not margins or min(margins) < 1:
            raise WeftError(f"margins are a tuple of pixels, each at least 1; got {margins!r}")
        if self.size <= 4 * self.seed_distance:
            raise WeftError(
                f"size is above {4 * self.seed_distance}, since the first seed is 2 seed_distance "
                f"away from every border; got size={self.size}"
            )

    @classmethod
    def of(cls, *, size: int = 32, dashes: int = 14) -> Drawing:
        """Long Range Arena's setting for a size; 14 dashes are "hard", 9 intermediate, 6 easy."""
        if size not in _PUBLISHED:
            raise WeftError(
                f"published sizes are {', '.join(map(str, _PUBLISHED))}; got size={size}. "
                "Another size: name every setting, Drawing(size=..., ...)"
            )
        length = max(1, dashes // 3)
        return cls(
            size=size,
            contour_length=dashes,
            distractor_length=length,
            distractors=_DISTRACTING_DASHES[size] // length,
            **_PUBLISHED[size],
        )


@dataclass(frozen=True, kw_only=True)
class Anatomy:
    """What an image holds; (y, x) in pixels, whole numbers being the centres of pixels."""

    label: int
    margin: int
    pivots: NDArray[np.int64]  # (2, dashes, 2) of the two long snakes
    snakes: NDArray[np.float64]  # (2, dashes, 2, 2) begin and end of each dash
    distractors: NDArray[np.float64]  # (distractors, dashes, 2, 2)
    discs: NDArray[np.int64]  # (2, 2)
    image: NDArray[np.uint8]  # (size, size)


def draw(
    drawing: Drawing,
    seed: int,
    first: int,
    count: int,
    *,
    threads: int = 1,
    out: NDArray[np.uint8] | None = None,
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (count, size, size) and labels (count,) of images first .. first + count - 1.

    Image i depends on (drawing, seed, i) and on nothing else. `out` receives the images, if given.
    """
    from weft.arena.tasks.pathfinder.growth import COMPILES, draw_images

    if threads < 1:
        raise WeftError(f"threads is at least 1; got {threads}")
    if count < 0:
        raise WeftError(f"count is at least 0; got {count}")
    if not COMPILES and count >= _MANY:
        warnings.warn(
            f"numba cannot be imported, so {count} images are drawn in plain Python, hundreds of "
            "times slower; pip install numba",
            stacklevel=2,
        )
    images, labels = _blank(drawing, count, out), np.zeros(count, np.int64)
    plan, key = plan_of(drawing), _key(seed, first, count)
    size = max(1, min(_CHUNK, -(-count // threads)))

    def chunk(at: int) -> None:
        part = slice(at, at + size)
        drawn = draw_images(plan, key, first + at, plan.most_dashes, images[part], labels[part])
        if drawn < len(images[part]):
            raise _impossible(drawing, first + at + drawn)

    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(chunk, range(0, count, size)):
            pass
    return images, labels


def anatomy(drawing: Drawing, seed: int, index: int) -> Anatomy:
    """The label, the curves, the discs and the pixels of one image."""
    from weft.arena.tasks.pathfinder.growth import draw_image

    plan, key = plan_of(drawing), _key(seed, index, 1)
    image = np.zeros((drawing.size, drawing.size), np.uint8)
    dashes, discs = np.zeros((plan.most_dashes, 3), np.int64), np.zeros((2, 2), np.int64)
    label, count = draw_image(plan, key, index, image, dashes, discs)
    if not count:
        raise _impossible(drawing, index)
    shapes = plan.shapes[dashes[:count, 2]]
    margin = drawing.margins[int(np.searchsorted(plan.first, dashes[0, 2], "right")) - 1]
    pivots, towards = dashes[:count, :2] // plan.scale, shapes[:, END : END + 2]
    unit = towards / np.linalg.norm(towards, axis=1, keepdims=True)
    ends = np.stack([pivots + unit * margin, pivots + unit * (margin + drawing.dash_length)], 1)
    long = 2 * drawing.contour_length
    return Anatomy(
        label=int(label),
        margin=margin,
        pivots=pivots[:long].reshape(-1, 2, 2).swapaxes(0, 1),
        snakes=ends[:long].reshape(-1, 2, 2, 2).swapaxes(0, 1),
        distractors=ends[long:].reshape(-1, drawing.distractor_length, 2, 2),
        discs=discs,
        image=image,
    )


def _key(seed: int, first: int, count: int) -> NDArray[np.int64]:
    if seed < 0:
        raise WeftError(f"seed is at least 0; got {seed}")
    if first < 0 or first + count > 1 << 32:
        raise WeftError(f"images are numbered from 0 to 2^32 - 1; got {first} to {first + count}")
    return np.random.SeedSequence(seed).generate_state(2).astype(np.int64)


def _blank(drawing: Drawing, count: int, out: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
    shape = (count, drawing.size, drawing.size)
    if out is None:
        return np.zeros(shape, np.uint8)
    images = np.asarray(out)
    if images.shape != shape or images.dtype != np.uint8 or not images.flags.carray:
        raise WeftError(
            f"out is a writable, contiguous uint8 array of shape {shape}; got {images.dtype} "
            f"{images.shape}"
        )
    images[...] = 0
    return images


def _impossible(drawing: Drawing, index: int) -> WeftError:
    from weft.arena.tasks.pathfinder.growth import PAIR_TRIALS

    return WeftError(
        f"two snakes of {drawing.contour_length} dashes did not fit into {drawing.size} × "
        f"{drawing.size} pixels in {PAIR_TRIALS:,} attempts (image {index}); take fewer dashes or "
        "a larger size"
    )
