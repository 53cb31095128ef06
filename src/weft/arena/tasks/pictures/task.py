"""Your own pictures as a task: a folder, a table of files, or an npz file.

    pictures(data='photos')                                   photos/cat/1.png, the folder names it
    pictures(data='photos.csv', file='path', label='kind')    paths are relative to the table
    pictures(data='photos.npz', form='palette', colours=64)   x (n, h, w[, 3]) uint8, y (n,)

All are of one size. They become RGB bytes, three tokens a pixel; greys; or colours of a palette
that is made from the training pictures. Classes are optional in an npz file or a folder without
folders: then pictures are learned from with objective = "pixel_lm" alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from weft.arena.data.examples import Examples, TokenRows
from weft.arena.data.palette import palette
from weft.arena.tasks import readers
from weft.arena.tasks.base import SPLITS, TASKS, Split, majority
from weft.arena.tasks.display import as_picture
from weft.arena.tasks.table.listed import Listing, Shares, check_shares, listed_rows, listing
from weft.errors import WeftError
from weft.pictures.coding import FORMS, Form, PictureCoding, grey
from weft.pictures.files import SUFFIXES, read_npz, read_picture

UNLABELLED = "picture"  # the class of pictures without one


class PicturesRead(NamedTuple):
    """All pictures of a task, in the order of the files."""

    pictures: np.ndarray  # (n, h, w, 3) uint8
    listing: Listing


@TASKS.register("pictures")
@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Classify your own pictures, or learn to draw such ones."""

    data: str = ""  # a folder, a table, or an .npz file
    file: str = "file"  # the table's column of paths
    label: str = "label"  # its column of classes
    split: str | None = None  # its column that says train, valid or test
    form: Form = "rgb"  # three bytes a pixel; "grey": one; "palette": the number of a colour
    colours: int = 512  # of a palette
    valid_share: float = 0.1  # where splits are made
    test_share: float = 0.2
    seed: int = 0  # of the splits, and of the palette

    kind: ClassVar = "classify"
    metric: ClassVar = "accuracy"

    def __post_init__(self) -> None:
        check_shares(self)
        if self.form not in FORMS or self.colours < 2:
            raise WeftError(
                f"form is one of {', '.join(FORMS)} and there are 2 colours or more; got "
                f"form={self.form!r}, colours={self.colours}"
            )

    @property
    def gallery(self) -> PicturesRead:
        """All pictures; read again only if the files have changed."""
        if not self.data:
            raise WeftError("pictures are read from your files: pictures(data='photos')")
        path = Path(self.data)
        if not path.exists():
            raise WeftError(f"there is no file or folder {self.data!r}; give a folder of pictures")
        files = tuple(_found(path)) if path.is_dir() else (path,)
        stamps = tuple(tuple(readers.stamp(each)) for each in files)
        shares = Shares(self.test_share, self.valid_share, self.seed)
        return _gallery(path, stamps, (self.file, self.label, self.split), shares)

    @property
    def coding(self) -> PictureCoding:
        """How pictures become tokens."""
        height, width = self.gallery.pictures.shape[1:3]
        colours = self.palette() if self.form == "palette" else None
        return PictureCoding(form=self.form, height=height, width=width, palette=colours)

    @property
    def coding_table(self) -> dict[str, Any]:
        """The same for the model's record, which `weft predict` and `weft generate` read."""
        return self.coding.table()

    def palette(self) -> np.ndarray:
        """The colours (colours, 3) of the training pictures."""
        found = self.gallery
        own = found.pictures[found.listing.splits == SPLITS.index("train")]
        return palette(own.reshape(-1, 3), self.colours, self.seed)

    @property
    def vocab(self) -> int:
        """Colours, or levels of a byte."""
        return self.colours if self.form == "palette" else 256

    @property
    def length(self) -> int:
        """Tokens of a picture."""
        height, width = self.gallery.pictures.shape[1:3]
        return height * width * (3 if self.form == "rgb" else 1)

    @property
    def classes(self) -> int:
        """Distinct labels; 1 where pictures have none."""
        return len(self.gallery.listing.names)

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes as the files name them."""
        return self.gallery.listing.names

    @property
    def text(self) -> str:
        """The column of files, also for prediction."""
        return self.file

    @property
    def source(self) -> str:
        """The files, and a digest by which a changed picture is noticed."""
        found = self.gallery
        height, width = found.pictures.shape[1:3]
        how = f"split by {self.split}" if self.split else f"splits made, seed {self.seed}"
        return (
            f"{Path(self.data).name} (digest {found.listing.digest}): {len(found.pictures):,} "
            f"pictures of {height} × {width} as {self.form}, {how}"
        )

    def load(self, split: Split) -> Examples:
        """One split, always the same for the same files and settings."""
        found, coding = self.gallery, self.coding
        index = np.flatnonzero(found.listing.splits == SPLITS.index(split))
        tokens = coding.encode(found.pictures[index])
        rows = TokenRows(tokens.ravel(), np.arange(len(index) + 1) * coding.length)
        return Examples(rows, coding.length, labels=found.listing.labels[index])

    def baselines(self) -> dict[str, float]:
        """The most frequent class."""
        return {"majority class": majority(self.load("train"), self.load("test"))}

    def show(self, row: np.ndarray) -> str:
        """The picture in characters."""
        picture = self.coding.decode(np.asarray(row, dtype=np.int64)[None])[0]
        return as_picture(grey(picture).ravel(), picture.shape[1])


@lru_cache(maxsize=2)
def _gallery(
    path: Path, stamps: tuple[Any, ...], columns: tuple[str, str, str | None], shares: Shares
) -> PicturesRead:
    if path.is_dir():
        files = [Path(stamp[0]) for stamp in stamps]
        nested = any(each.parent != path for each in files)
        labels = [each.parent.name if nested else UNLABELLED for each in files]
        places = [str(each.relative_to(path)) for each in files]
        pictures, splits = _all(files, files), None
    elif path.suffix.lower() == ".npz":
        pictures, given = read_npz(path)
        labels = [UNLABELLED] * len(pictures) if given is None else [str(each) for each in given]
        places, splits = [f"{path.name}, picture {row:,}" for row in range(len(labels))], None
    else:
        file, label, split = columns
        rows = list(listed_rows(path, [file, label], [split] if split else []))
        places, labels = [where for where, _ in rows], [row[label] for _, row in rows]
        pictures = _all([path.parent / row[file] for _, row in rows], places)
        splits = [row[split] for _, row in rows] if split else None
    contents = [each.tobytes() for each in pictures]
    alone = set(labels) == {UNLABELLED}
    found = listing(contents, labels, splits, places, shares, "pictures", one_class=alone)
    return PicturesRead(pictures, found)


def _found(folder: Path) -> list[Path]:
    """The pictures of a folder, or of its folders."""
    files = [each for each in sorted(folder.rglob("*")) if each.suffix.lower() in SUFFIXES]
    if not files:
        raise WeftError(f"the folder {folder} holds no {', '.join(SUFFIXES)} files")
    depth = {len(each.relative_to(folder).parts) for each in files}
    if depth not in ({1}, {2}):
        raise WeftError(
            f"{folder} holds pictures, or one folder of pictures for each class; got pictures "
            f"{', '.join(map(str, sorted(depth)))} levels deep"
        )
    return files


def _all(files: list[Path], places: list[Any]) -> np.ndarray:
    """Pictures (n, h, w, 3) of one size; what cannot be used is said with its place."""
    found: np.ndarray | None = None
    for row, (file, place) in enumerate(zip(files, places, strict=True)):
        try:
            picture = read_picture(file)
        except WeftError as cause:
            raise WeftError(f"{place}: {cause}" if place != file else str(cause)) from cause
        if found is None:
            found = np.empty((len(files), *picture.shape), dtype=np.uint8)
        if picture.shape != found.shape[1:]:
            sizes = [f"{each[0]} × {each[1]}" for each in (picture.shape, found.shape[1:])]
            raise WeftError(
                f"{place}: the picture is {sizes[0]} (height × width), and the first one is "
                f"{sizes[1]}: scale or cut all pictures to one size first"
            )
        found[row] = picture
    if found is None:
        raise WeftError("there are no pictures to read")
    return found
