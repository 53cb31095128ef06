"""A plugin for tests of the arena: a tiny task, and mechanisms that fail in different ways.

It registers names in weft's registries, so it is imported in processes of its own only.
"""

import os
import signal
import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from weft.arena.data.examples import Examples, TokenRows
from weft.arena.tasks import TASKS
from weft.mixers import MIXERS, Traits
from weft.mixers.base.under_pattern import PatternAttention
from weft.patterns import Full


@TASKS.register("tiny")
@dataclass(frozen=True, kw_only=True)
class Tiny:
    """The class of a sequence is its first token."""

    length: int = 8
    pause: float = 0.0  # seconds that each batch of training takes

    kind: ClassVar = "classify"
    metric: ClassVar = "accuracy"
    vocab: ClassVar = 4
    classes: ClassVar = 4
    source: ClassVar = "drawn for tests"

    def load(self, split):
        """The same rows every time."""
        draw = np.random.default_rng(len(split))
        tokens = draw.integers(0, 4, size=(60, self.length))
        kind = Slow if split == "train" and self.pause else Examples
        rows = kind(TokenRows.of(list(tokens)), self.length, labels=tokens[:, 0].astype(np.int64))
        Slow.pause = self.pause
        return rows

    def baselines(self):
        """Chance."""
        return {"chance": 0.25}


class Slow(Examples):
    """Rows that take their time."""

    pause = 0.0

    def batch(self, index):
        """Some rows, later."""
        time.sleep(self.pause)
        return super().batch(index)


class Failing(PatternAttention):
    """Does what its config says instead of attending."""

    def attention(self, *inputs, **given):
        """Fail."""
        return self.config.fail(*inputs)


def failing(name):
    """Register a mechanism that fails by the decorated function."""

    def add(how):
        @MIXERS.register(name)
        @dataclass(frozen=True, kw_only=True)
        class Broken:
            """Fails."""

            traits: ClassVar = Traits(family="test", paper="", time="", memory="")

            def fail(self, *inputs):
                """Fail."""
                return how(*inputs)

            def build(self, frame):
                """The module."""
                return Failing(self, frame, Full())

        return Broken

    return add


@failing("hungry")
def _hungry(q, *_):
    held = []
    while True:
        held.append(torch.ones(1 << 26))  # 256 MiB


@failing("raising")
def _raising(*_):
    raise RuntimeError("no luck\nwith this one \x1b[31m\x1b]0;taken over\x07")


@failing("hanging")
def _hanging(*_):
    time.sleep(1000)


@failing("killed")
def _killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)
