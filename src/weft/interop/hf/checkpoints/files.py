"""The weights of a folder: safetensors, whole or in shards, or a .bin file of tensors alone.

Headers are checked before anything is read: a file that is cut short, or whose header says
something impossible, is refused. A pickle is read by torch's reader of tensors alone
(`weights_only=True`); one that holds anything else is refused, never run.
"""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from weft.errors import WeftError

_SAFE, _BIN = "model.safetensors", "pytorch_model.bin"
_LARGEST_HEADER = 100_000_000  # bytes, the format's own limit
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class SafeWeights(Mapping[str, Tensor]):
    """The tensors of safetensors files, each read when it is asked for."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self.files = dict(files)  # {name: file}
        self.headers = {path: header(path) for path in dict.fromkeys(self.files.values())}
        for name, path in self.files.items():
            if name not in self.headers[path]:
                raise WeftError(f"{path} lacks {name}, which the index says it has")

    def shapes(self) -> dict[str, Tensor]:
        """Tensors without memory, of the shapes that the headers say."""
        return {name: self.headers[path][name] for name, path in self.files.items()}

    def __getitem__(self, name: str) -> Tensor:
        path = self.files[name]
        try:
            with safe_open(path, framework="pt") as file:
                return file.get_tensor(name)
        except SafetensorError as cause:
            raise WeftError(f"{path} cannot be read, is it cut short? {cause}") from cause

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


def header(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file without memory, as its header says they are."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 0 < length <= min(_LARGEST_HEADER, size - 8):
            raise _not_safe(path, f"it says that its header has {length} bytes, of {size} in all")
        try:
            table = json.loads(file.read(length))
        except ValueError as cause:
            raise _not_safe(path, f"its header is not valid JSON: {cause}") from cause
    if not isinstance(table, dict):
        raise _not_safe(path, "its header is not a table")
    found = {name: _described(path, name, told) for name, told in table.items() if _is_tensor(name)}
    end = max(
        (told["data_offsets"][1] for name, told in table.items() if _is_tensor(name)), default=0
    )
    if size != 8 + length + end:
        raise WeftError(
            f"{path} is cut short or damaged: its header describes {8 + length + end} bytes, and "
            f"it has {size}; download it again"
        )
    return found


def _is_tensor(name: str) -> bool:
    return name != "__metadata__"


def _described(path: Path, name: str, told: Any) -> Tensor:
    try:
        dtype, shape, (start, end) = _DTYPES[told["dtype"]], told["shape"], told["data_offsets"]
        fits = all(isinstance(n, int) and n >= 0 for n in (*shape, start, end))
        fits = fits and end - start == math.prod(shape) * dtype.itemsize
    except (KeyError, TypeError, ValueError) as cause:
        raise _not_safe(path, f"it describes {name} by {told!r}") from cause
    if not fits:
        raise _not_safe(path, f"{name} has {shape} numbers of {dtype} in bytes {start} to {end}")
    return torch.empty(shape, dtype=dtype, device="meta")


def _not_safe(path: Path, reason: str) -> WeftError:
    return WeftError(f"{path} is not a safetensors file that can be read: {reason}")


def weights_of(folder: Path) -> Mapping[str, Tensor]:
    """The weights of a folder, by name; read lazily where the format allows it."""
    safe, index = folder / _SAFE, folder / f"{_SAFE}.index.json"
    if safe.is_file():
        return SafeWeights(dict.fromkeys(header(safe), safe))
    if index.is_file():
        return SafeWeights(_indexed(folder, index))
    if (folder / _BIN).is_file():
        return tensors_of_pickle(folder / _BIN)
    index = folder / f"{_BIN}.index.json"
    if index.is_file():
        shards = dict.fromkeys(_indexed(folder, index).values())
        return {name: t for shard in shards for name, t in tensors_of_pickle(shard).items()}
    raise WeftError(
        f"{folder} has no weights: {_SAFE}, its shards with an index, {_BIN} or a .gguf file"
    )


def _indexed(folder: Path, index: Path) -> dict[str, Path]:
    """Where each tensor is, by an index; files lie in the folder itself."""
    table = read_table(index)
    places = table.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(v, str) for v in places.values()):
        raise WeftError(f"{index} has no weight_map of names to files")
    found = {}
    for name, file in places.items():
        if Path(file).name != file:
            raise WeftError(f"{index} names {file!r}, which is not a file of the folder")
        if not (folder / file).is_file():
            raise WeftError(f"{folder} lacks the shard {file}, which {index.name} names")
        found[name] = folder / file
    return found


def tensors_of_pickle(path: Path) -> dict[str, Tensor]:
    """The tensors of a .bin file, by torch's reader that runs no code."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as cause:
        first = str(cause).partition("\n")[0]
        raise WeftError(
            f"{path} is cut short, or a pickle that holds more than tensors, which is never "
            f"loaded since it could run any code: {first}. Save the model as safetensors"
        ) from cause
    if not isinstance(found, dict) or not all(isinstance(t, Tensor) for t in found.values()):
        raise WeftError(f"{path} holds something other than named tensors")
    return found


def read_table(path: Path) -> dict[str, Any]:
    """A JSON file that holds a table."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as cause:
        raise WeftError(f"{path} is not valid JSON: {cause}") from cause
    if not isinstance(table, dict):
        raise WeftError(f"{path} is not a table of settings; got {type(table).__name__}")
    return table
