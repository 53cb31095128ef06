"""Concatenation of decoding states along the batch.

A state is a dataclass of tensors whose first axis is the batch, of values that all rows share, and
of further states. States can be joined where everything but the batch agrees: the number of tokens
consumed, the sizes of caches. A state of another kind defines a class method `joined(states)`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


class CannotJoin(Exception):
    """States that cannot be one batch."""


def joined(states: Sequence[Any]) -> Any:
    """The rows of all states, in order; raises `CannotJoin` where they cannot be joined."""
    first = states[0]
    if any(type(state) is not type(first) for state in states):
        raise CannotJoin
    if hasattr(first, "joined"):
        return first.joined(states)
    if isinstance(first, Tensor):
        return _cat(states)
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in dataclasses.fields(first)]
        parts = {name: joined([getattr(state, name) for state in states]) for name in names}
        return dataclasses.replace(first, **parts)
    if isinstance(first, list | tuple):
        if any(len(state) != len(first) for state in states):
            raise CannotJoin
        return type(first)(joined(parts) for parts in zip(*states, strict=True))
    if isinstance(first, np.ndarray):
        same = all(np.array_equal(first, state) for state in states)
    else:
        same = all(first == state for state in states)
    if not same:
        raise CannotJoin
    return first


def _cat(tensors: Sequence[Tensor]) -> Tensor:
    first = tensors[0]
    if not first.dim() or any(
        t.shape[1:] != first.shape[1:] or t.dtype != first.dtype for t in tensors
    ):
        raise CannotJoin
    return torch.cat(list(tensors))
