"""Weights from one phase's model to the next one's.

A tensor goes over if the next model has one of the same name. Where shapes differ because the
length or the vocabulary differs:

    learned positions    a longer table repeats the old one from its start (Longformer's way: copied
                         positions cost 0.1 bits, random ones 8), a shorter one takes its first rows
    all others           what both have, from the first index on; the rest keeps its fresh start

Any other difference in shape leaves the fresh start, and so does a head whose objective differs.
Everything that did not go over whole is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import WeftError
from weft.models import EncoderDecoder
from weft.training.checkpoints.tensors import named_tensors


@dataclass(frozen=True)
class Transferred:
    """Names of tensors by what became of them."""

    whole: tuple[str, ...]
    adapted: tuple[str, ...]  # of another length or vocabulary
    fresh: tuple[str, ...]

    def __str__(self) -> str:
        parts = [f"{len(self.whole)} tensors carried over"]
        for text, names in (("adapted", self.adapted), ("started fresh", self.fresh)):
            if names:
                parts.append(f"{text}: {', '.join(names)}")
        return "; ".join(parts)


@torch.no_grad()
def transfer(old: nn.Module, new: nn.Module, *, head: bool = True) -> Transferred:
    """Copy what fits from the old model into the new one; head=False leaves heads out."""
    found = named_tensors(old)
    pairs = _sizes(old.config, new.config)
    result: dict[str, list[str]] = {"whole": [], "adapted": [], "fresh": []}
    for name, tensor in named_tensors(new).items():
        source = found.get(name) if head or name.startswith("trunk.") else None
        fate = "fresh" if source is None else _copy(name, source, tensor, pairs)
        result[fate].append(name)
    if not result["whole"]:
        raise WeftError(
            "no weights go from this phase to the next: the models have nothing in common; "
            "give both the same widths, or train them as two runs"
        )
    return Transferred(**{fate: tuple(names) for fate, names in result.items()})


def _copy(name: str, old: Tensor, new: Tensor, pairs: set[tuple[int, int]]) -> str:
    if old.shape == new.shape:
        new.copy_(old)
        return "whole"
    sizes = list(zip(old.shape, new.shape, strict=False))
    if old.dim() != new.dim() or any(a != b and (a, b) not in pairs for a, b in sizes):
        return "fresh"
    if name.endswith("embedding.positions"):
        new.copy_(old[torch.arange(len(new), device=old.device) % len(old)])
    else:
        shared = tuple(slice(min(a, b)) for a, b in sizes)
        new[shared] = old[shared]
    return "adapted"


def _sizes(old: Any, new: Any) -> set[tuple[int, int]]:
    """Sizes of axes that may differ: (old, new) lengths, with and without registers, and vocabs."""
    pairs = set()
    for one, two in product(_trunks(old.trunk), _trunks(new.trunk)):
        pairs.add((one.embedding.vocab, two.embedding.vocab))
        lengths = _frame(one).length, _frame(two).length
        if None not in lengths:
            registers = one.embedding.registers, two.embedding.registers
            pairs |= {lengths, (lengths[0] + registers[0], lengths[1] + registers[1])}
    return pairs


def _frame(trunk: Any) -> Any:
    return trunk.stack.frame if hasattr(trunk, "stack") else trunk.frame


def _trunks(trunk: Any) -> tuple[Any, ...]:
    both = isinstance(trunk, EncoderDecoder)
    return (trunk.encoder, trunk.decoder) if both else (trunk,)
