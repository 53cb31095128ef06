"""The tables of a model file as Python reads them, and whether a description agrees with them.

`config.json` lies beside the checked file and may be edited by anyone. It says which parameters
tensors were made from, and it is compared with the tables before any of its numbers is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.errors import WeftError
from weft.native import file
from weft.native.plan import StoredTensor
from weft.native.precision import DTYPES


@dataclass(frozen=True)
class FileTables:
    """What `model.weft` says about itself."""

    vocab: int
    limit: int
    sublayers: int
    cache: int  # the number of a dtype
    tensors: tuple[tuple[int, ...], ...]  # (dtype, panels, rows, cols, offset, scales)


def read_tables(buffer: Any, size: int) -> FileTables:
    """From the first bytes of a model file; raises WeftError where they are something else."""
    if size < file.HEADER.size:
        raise WeftError(f"this is not a model file: it has {size} bytes, fewer than a header")
    view = memoryview(buffer).cast("B")
    magic, checksum, length, *values = file.HEADER.unpack_from(view)
    if magic != file.MAGIC:
        raise WeftError(f"this is not a model file: it does not begin with {file.MAGIC.decode()}")
    if length != size:
        raise WeftError(
            f"this is not a model file: it has {size} bytes, but was written with {length}; "
            "is it truncated?"
        )
    tensors, sublayers = values[:2]
    records = file.HEADER.size + tensors * file.TENSOR.size
    tables = records + sublayers * file.SUBLAYER.size
    if tables > size or file.checksum(bytes(view[16:tables])) != checksum:
        raise WeftError("this is not a model file: its header is damaged (checksum)")
    counts = dict(zip(file.COUNTS, values[2:], strict=False))
    return FileTables(
        vocab=counts["vocab"],
        limit=counts["limit"],
        sublayers=sublayers,
        cache=counts["cache"],
        tensors=tuple(file.TENSOR.iter_unpack(view[file.HEADER.size : records])),
    )


def check_description(description: Any, buffer: Any, size: int) -> None:
    """Refuse a description of another file: every number in it equals the file's."""
    found = read_tables(buffer, size)
    numbers = {"vocab": found.vocab, "limit": found.limit, "sublayers": found.sublayers}
    for name, there in numbers.items():
        _equal(name, getattr(description, name), there)
    dtypes = {number: name for name, number in DTYPES.items()}
    _equal("cache", description.cache, dtypes.get(found.cache))
    _equal("number of tensors", len(description.stored), len(found.tensors))
    stored = _records(description.stored, found.sublayers)
    for tensor, said, there in zip(description.stored, stored, found.tensors, strict=True):
        _equal(f"record of {tensor.name}", said, there)


def _records(stored: Sequence[StoredTensor], sublayers: int) -> list[tuple[int, ...]]:
    try:
        places = file.FileOffsets(list(stored), sublayers)
        return list(file.records(stored, places))
    except (KeyError, TypeError, OverflowError) as error:
        raise WeftError(
            f"config.json describes a tensor that no model file holds ({error!r}); export it again"
        ) from None


def _equal(name: str, said: object, there: object) -> None:
    if repr(said) != repr(there):  # 48.0 and True are no counts either
        raise WeftError(
            f"config.json and model.weft belong to different models: {name} is {said} in the one "
            f"and {there} in the other; export the model again"
        )
