"""Seeds for separate purposes from one seed."""

from __future__ import annotations

import hashlib


def derive(seed: int, *purpose: str | int) -> int:
    """A seed below 2⁶³ for a purpose, e.g. derive(0, "mask", step): unlike purposes, unlike seeds.

    A function of its arguments alone: the same in every process, on every machine.
    """
    text = repr((int(seed), *purpose)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
