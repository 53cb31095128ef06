"""Bases as tokens, one by one or k at a time, and the same tokens of the other strand.

    base tokens   A 0, C 1, G 2, T 3, anything unknown (N) 4
    k-mers        Σ_i 4^(k−1−i) base_i,  or 4^k where one of the k bases is unknown

`step` bases lie between the starts of two tokens: 1 is overlapping, k is not. Lower case (soft
masked) reads as upper case, U as T. The reverse complement of a sequence of tokens is the tokens
backwards, each replaced by that of its bases on the other strand.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from weft.config import config
from weft.errors import WeftError

LETTERS = "ACGTN"
UNKNOWN = 4
AMBIGUOUS = "RYSWKMBDHVN"  # letters that stand for several bases (IUPAC): read as unknown
MOST = 8  # of k: 65,537 ids
_WRONG = 255


def _table() -> np.ndarray:
    table = np.full(256, _WRONG, dtype=np.uint8)
    letters = [*zip("ACGTU", (0, 1, 2, 3, 3), strict=True), *((x, UNKNOWN) for x in AMBIGUOUS)]
    for letter, base in letters:
        table[ord(letter)] = table[ord(letter.lower())] = base
    return table


_TABLE = _table()


def bases(letters: str, where: str) -> np.ndarray:
    """Letters as bases 0 to 4, uint8; others are refused with their place."""
    raw = np.frombuffer(letters.encode("utf-8", "replace"), dtype=np.uint8)
    if not len(raw):
        raise WeftError(f"{where} has no bases: the sequence is empty; leave it out")
    found = _TABLE[raw]
    if (found == _WRONG).any():
        place = int((found == _WRONG).argmax())
        raise WeftError(
            f"{where}: {chr(raw[place])!r} at base {place + 1:,} is not a base; A, C, G, T (or U), "
            f"N and the letters for several bases ({AMBIGUOUS[:-1]}) are"
        )
    return found


def letters_of(found: np.ndarray) -> str:
    """Bases 0 to 4 as letters."""
    return "".join(LETTERS[base] for base in found)


@config
class Kmers:
    """How bases become tokens."""

    k: int = 1
    step: int = 1  # bases from one token to the next

    def __post_init__(self) -> None:
        if not 1 <= self.k <= MOST or not 1 <= self.step <= self.k:
            raise WeftError(f"k is 1 to {MOST} and step 1 to k; got k={self.k}, step={self.step}")

    @property
    def vocab(self) -> int:
        """Ids; the last is a k-mer with an unknown base."""
        return 4**self.k + 1

    def count(self, length: int) -> int:
        """Tokens of this many bases; bases that are left over at the end are not read."""
        return max(0, (length - self.k) // self.step + 1)

    def tokens(self, found: np.ndarray) -> np.ndarray:
        """Bases (n,) -> ids (tokens,), uint32 or less."""
        kind = np.uint8 if self.vocab <= 256 else np.uint16 if self.vocab <= 65536 else np.uint32
        windows = np.lib.stride_tricks.sliding_window_view(found, self.k)[:: self.step]
        ids = windows.astype(np.int64) @ (4 ** np.arange(self.k)[::-1])
        return np.where((windows == UNKNOWN).any(1), 4**self.k, ids).astype(kind)

    def bases(self, ids: np.ndarray) -> np.ndarray:
        """The bases (n,) that tokens stand for; where tokens overlap, of the first of them."""
        digits = (ids.astype(np.int64)[:, None] // 4 ** np.arange(self.k)[::-1]) % 4
        digits[ids == 4**self.k] = UNKNOWN
        if not len(ids):
            return np.zeros(0, dtype=np.uint8)
        return np.concatenate((digits[:-1, : self.step].reshape(-1), digits[-1])).astype(np.uint8)

    def complements(self) -> np.ndarray:
        """(vocab,) the token of each token's bases on the other strand."""
        return _complements(self.k)

    def reverse_complement(self, ids: np.ndarray) -> np.ndarray:
        """Ids (..., n) of the other strand, read from its start."""
        return self.complements()[ids][..., ::-1]


@lru_cache(maxsize=MOST)
def _complements(k: int) -> np.ndarray:
    ids = np.arange(4**k)
    found = np.zeros(4**k, dtype=np.int64)
    for _ in range(k):
        found = 4 * found + 3 - ids % 4  # A and T, C and G add up to 3
        ids = ids // 4
    return np.append(found, 4**k)
