"""Ways to decode one token: torch step by step, or one call into the native library.

A path has read `context` tokens. `clock` decodes one more and returns its time by part.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from weft.bench.decode_setting import DecodeSetting
from weft.bench.decode_weights import fill
from weft.errors import Unsupported

PROMPT_CHUNK = 64
TOTAL = "total"
_NAMES = {"s": "attention", "f": "feedforward"}


def prompt(vocab: int, tokens: int) -> Tensor:
    """Random ids (1, n)."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(vocab, (1, tokens), generator=generator)


class TorchPath:
    """The model itself, in eager torch; cache and output layer have the weights' precision."""

    def __init__(self, model: Any, setting: DecodeSetting) -> None:
        if setting.weights == "int8":
            raise Unsupported("the torch path has no int8 weights; time it in float32 or bfloat16")
        self.precision = dict.fromkeys(("weights", "cache", "output"), setting.weights)
        self.model = fill(model, getattr(torch, setting.weights))
        self.rows = torch.zeros(setting.batch, dtype=torch.long)
        vocab = model.config.trunk.embedding.vocab
        self.ids = prompt(vocab, setting.batch).view(-1, 1)  # (b, 1)
        with torch.no_grad():
            state = model.start(1)
            for part in prompt(vocab, _before(setting)).split(PROMPT_CHUNK, dim=1):
                _, state = model.trunk.step(part, state)
        self.state = state.select(self.rows)

    @torch.no_grad()
    def clock(self) -> dict[str, float]:
        """Decode one token; seconds by part. The next call continues from it."""
        with _watched(self.model) as spent:
            start = time.perf_counter()
            scores, self.state = self.model.next_scores(self.ids, self.state)
            scored = time.perf_counter()
            self.ids = scores.argmax(-1, keepdim=True)  # (b, 1)
            end = time.perf_counter()
            return {**spent, "pick": end - scored, TOTAL: end - start}


def _before(setting: DecodeSetting) -> int:
    """Tokens of the prompt. Each turn adds two: half of the turns are below `context`."""
    return max(setting.context - setting.rounds, 1)


@contextmanager
def _watched(model: Any) -> Iterator[dict[str, float]]:
    """Time embedding, sublayers and output; seconds are added up by part."""
    spent: dict[str, float] = {}

    def clocked(name: str, function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            result = function(*args, **options)
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - start
            return result

        return call

    sublayers = list(model.trunk.stack.sublayers)
    for sublayer in sublayers:
        sublayer.step = clocked(_NAMES[sublayer.letter], sublayer.step)
    embedding = model.trunk.embedding
    embedding.forward = clocked("embed", embedding.forward)
    model.scores = clocked("logits", model.scores)
    try:
        yield spent
    finally:
        for sublayer in sublayers:
            del sublayer.step
        del model.scores, embedding.forward


class NativePath:
    """The native library: one call per token."""

    def __init__(self, model: Any, setting: DecodeSetting) -> None:
        from weft.native import NativeModel, available
        from weft.native import compile as compile_native

        reason = available()
        if reason is not None:
            raise Unsupported(f"the native library does not run here: {reason}")
        names = ("weights", "cache", "output")
        self.precision = {name: getattr(setting, name) for name in names}
        native = compile_native(
            model, dtype=setting.weights, cache=setting.cache, output=setting.output
        )
        assert isinstance(native, NativeModel)  # a torch model only where `available` says why
        self.model = native
        vocab = model.config.trunk.embedding.vocab
        state = self.model.start(1)
        state.feed(prompt(vocab, _before(setting)).tolist())
        self.state = state.select([0] * setting.batch)
        self.tokens = prompt(vocab, setting.batch)[0].numpy()

    def clock(self) -> dict[str, float]:
        """Decode one token; seconds by part. The next call continues from it."""
        start = time.perf_counter()
        self.tokens = self.state.best(self.tokens)
        total = time.perf_counter() - start
        parts = self.state.profile()
        return {TOTAL: total, **{name: 1e-9 * part["nanoseconds"] for name, part in parts.items()}}


PATHS = {"torch": TorchPath, "native": NativePath}
