"""Key-value retrieval with the published documents: a JSON object of UUIDs, read byte by byte.

    {"2a8d601d-...": "9ac1...",
     "6ab61b87-...": "bb3b..."}
    "6ab61b87-...": "            ->  class 11, the first hexadecimal digit b of the value

Training and validation documents are drawn (random UUIDs of version 4, so no key is ever seen
twice). Test documents are the records of the published file in `folder`, or drawn as well. As in
the paper, each validation and test record is asked with the pair that holds its answer moved to
several places, evenly from the first to the last; the groups are these places.

Paper: Liu et al. 2023, Lost in the Middle, https://arxiv.org/abs/2307.03172, section 3
Differs from it: a classifier names the first digit of the value (16 classes) instead of writing all
36 characters, and there are no instructions around the data. 500 records are too few to train on,
hence the drawn ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from weft.arena.data.draws import below, bits
from weft.arena.data.examples import Examples, TokenRows
from weft.arena.tasks import readers
from weft.arena.tasks.base import SPLITS, TASKS, Split, majority
from weft.arena.tasks.display import as_text
from weft.errors import WeftError

PLACES = 5  # positions of the queried pair in validation and test
EXPECTED = (
    "<pairs>.jsonl with the fields ordered_kv_records, key and value: the unpacked "
    "kv-retrieval-<pairs>_keys.jsonl of https://github.com/nelson-liu/lost-in-the-middle"
)
_DIGITS = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_UUID = 36
_DASHES = [8, 13, 18, 23]
_OPEN, _BETWEEN, _NEXT, _CLOSE = b'{"', b'": "', b'",\n "', b'"}\n"'


@TASKS.register("key_value_uuid")
@dataclass(frozen=True, kw_only=True)
class KeyValueUuid:
    """Find the value of a key in a JSON object of UUIDs, byte by byte."""

    pairs: int = 75  # the published files have 75, 140 and 300
    train: int = 10_000
    valid: int = 200  # records, each queried at several positions
    test: int = 500
    seed: int = 0
    folder: str = ""  # of the published file; default: test records are drawn

    kind: ClassVar = "classify"
    metric: ClassVar = "accuracy"
    classes: ClassVar = 16
    vocab: ClassVar = 256

    def __post_init__(self) -> None:
        if min(self.pairs, self.train, self.valid, self.test) < 1:
            raise WeftError(f"pairs, train, valid and test are at least 1; got {self}")

    @property
    def length(self) -> int:
        """Bytes of a document; all are equally long."""
        pair = 2 * _UUID + len(_BETWEEN)
        ends = len(_OPEN) + len(_CLOSE) + _UUID + len(_BETWEEN)
        return self.pairs * pair + (self.pairs - 1) * len(_NEXT) + ends

    @property
    def source(self) -> str:
        """Which data this is, in words."""
        drawn = f"key-value pairs of UUIDs, own generator, seed {self.seed}"
        return f"{drawn}; tested on the published {self._file().name}" if self.folder else drawn

    def load(self, split: Split) -> Examples:
        """Documents and the first digit of the queried value."""
        if split == "test" and self.folder:
            records, gold = _read(self._file(), self.pairs)
        else:
            stream = bits(self.seed, SPLITS.index(split))
            records = _uuids(stream, (getattr(self, split), self.pairs, 2))
            gold = below(stream, (len(records),), self.pairs)
        if split == "train":
            return Examples(*self._documents(records, gold))
        places = np.linspace(0, self.pairs - 1, min(PLACES, self.pairs)).round().astype(int)
        records = np.concatenate([_moved(records, gold, place) for place in places])
        groups = np.repeat(np.arange(len(places)), len(gold))
        return Examples(
            *self._documents(records, places[groups]),
            groups=groups,
            group_names=tuple(f"pair {place}" for place in places),
        )

    def baselines(self) -> dict[str, float]:
        """The most frequent class."""
        return {
            "majority class": majority(self.load("train"), self.load("test")),
        }

    def show(self, row: np.ndarray) -> str:
        """The document."""
        return as_text(row)

    def _documents(
        self, records: np.ndarray, gold: np.ndarray
    ) -> tuple[TokenRows, int, np.ndarray]:
        """Rows, their length and their labels: records (rows, pairs, 2, 36), gold (rows,)."""
        every = np.arange(len(records))
        parts = [_OPEN]
        for pair in range(self.pairs):
            parts += [records[:, pair, 0], _BETWEEN, records[:, pair, 1], _NEXT]
        parts[-1] = _CLOSE
        parts += [records[every, gold, 0], _BETWEEN]
        tokens = np.concatenate([_columns(part, len(records)) for part in parts], axis=1)
        starts = np.arange(len(records) + 1) * self.length
        labels = np.searchsorted(_DIGITS, records[every, gold, 1, 0])
        return TokenRows(tokens.ravel(), starts), self.length, labels

    def _file(self) -> Path:
        folder = readers.data_folder("key_value_uuid", self.folder, EXPECTED)
        for name in (f"{self.pairs}.jsonl", f"kv-retrieval-{self.pairs}_keys.jsonl"):
            if (folder / name).is_file():
                return folder / name
        raise readers.unexpected("key_value_uuid", folder, EXPECTED)


def _columns(part: bytes | np.ndarray, rows: int) -> np.ndarray:
    if isinstance(part, np.ndarray):
        return part
    return np.broadcast_to(np.frombuffer(part, dtype=np.uint8), (rows, len(part)))


def _uuids(stream: np.random.PCG64, shape: tuple[int, ...]) -> np.ndarray:
    """(*shape, 36) random UUIDs of version 4 as characters."""
    words = stream.random_raw(2 * int(np.prod(shape))).astype("<u8")
    octets = words.view(np.uint8).reshape(*shape, 16)
    digits = np.stack([octets >> 4, octets & 15], axis=-1).reshape(*shape, 32)
    digits[..., 12] = 4
    digits[..., 16] = 8 + (digits[..., 16] & 3)
    found = np.full((*shape, _UUID), ord("-"), dtype=np.uint8)
    found[..., np.delete(np.arange(_UUID), _DASHES)] = _DIGITS[digits]
    return found


def _moved(records: np.ndarray, gold: np.ndarray, place: int) -> np.ndarray:
    """Records with pair gold[i] at `place`; the others keep their order."""
    others = np.arange(records.shape[1] - 1) + (np.arange(records.shape[1] - 1) >= gold[:, None])
    order = np.insert(others, place, gold, axis=1)  # (rows, pairs)
    return records[np.arange(len(records))[:, None], order]


def _read(path: Path, pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Records (rows, pairs, 2, 36) as characters, and which pair is queried."""
    texts, gold = [], []
    for line, row in readers.json_lines(path, ordered_kv_records=list, key=str, value=str):
        records = row["ordered_kv_records"]
        found = [i for i, pair in enumerate(records) if pair == [row["key"], row["value"]]]
        if len(records) != pairs or len(found) != 1:
            what = f"needs {pairs} pairs, one of them the queried key and value"
            raise readers.broken(path, line, f"{what}; got {len(records)} and {len(found)}")
        text = "".join("".join(pair) for pair in records)
        if len(text) != pairs * 2 * _UUID or set(text) - set("0123456789abcdef-"):
            raise readers.broken(path, line, "keys and values are UUIDs of 36 characters")
        texts.append(text)
        gold.append(found[0])
    if not texts:
        raise WeftError(f"{path} holds no records")
    characters = np.frombuffer("".join(texts).encode(), dtype=np.uint8)
    return characters.reshape(len(texts), pairs, 2, _UUID), np.array(gold)
