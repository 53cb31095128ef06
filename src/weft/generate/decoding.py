"""`generate` and `stream` for models that decode step by step.

A class that has `start` and `step` inherits both from `Decoding`:

    start(batch, **source) -> state
    step(ids, state) -> scores (b, n, vocab), state
    check_prompt(ids, tokens)                       raises where ids (n,) cannot grow to `tokens`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from weft.errors import WeftError
from weft.generate.beam import Beams, beam_search
from weft.generate.engine import Engine, source_rows
from weft.generate.sampling import Sampling
from weft.generate.stopping import Reason, Stopping
from weft.generate.text import TextCodec
from weft.layers.marks import Marks

Stop = int | str | Iterable[int | str] | None


@dataclass(frozen=True, kw_only=True)
class Piece:
    """New text of one row, or its end."""

    row: int
    text: str  # whole characters; empty where a token completes none
    tokens: tuple[int, ...]  # all new tokens of the row so far
    reason: Reason | None = None  # why the row has ended; None: it goes on


class Decoding:
    """Continues prompts by `start` and `step`."""

    step: Callable[[Tensor, Any], tuple[Tensor, Any]]

    def next_scores(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        """New ids (b, n) -> scores (b, vocab) of the token that follows them, and the state."""
        scores, state = self.step(ids, state)
        return scores[:, -1], state

    def check_prompt(self, ids: Tensor, tokens: int) -> None:
        """Raise where the model cannot read ids (n,), or not continue them to `tokens` tokens."""

    def generate(
        self,
        ids: Tensor | Sequence[Tensor],
        max_new_tokens: int,
        *,
        temperature: float = Sampling.temperature,
        top_k: int | None = Sampling.top_k,
        top_p: float | None = Sampling.top_p,
        min_p: float | None = Sampling.min_p,
        repetition_penalty: float = Sampling.repetition_penalty,
        seed: int | None = Sampling.seed,
        stop: Stop = None,
        text: TextCodec | None = None,
        prompt_chunk: int | None = None,
        beams: Beams | int | None = None,
        source: Tensor | None = None,
        source_valid: Tensor | None = None,
        source_marks: Marks | None = None,
    ) -> Tensor | list[Tensor]:
        """Continue prompts: (b, n) -> (b, n + new), or rows (n,) of any lengths -> a list.

        Temperature 0 takes the best token; otherwise tokens are drawn after the filters of
        `Sampling`. Each row has its own random numbers, which depend on `seed` and its index only
        (without a seed: on torch's global generator). A row ends after a token or a string of
        `stop` (strings need `text`), which is included; in a (b, n + new) result its last token is
        repeated. `prompt_chunk` is the number of prompt tokens read per call; `beams` searches
        instead.
        """
        extra = self._source(source, source_valid, source_marks)
        sampling = Sampling(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
        )
        stopping = Stopping.at(max_new_tokens, stop)
        if beams is not None:
            found = self._searched(ids, stopping, sampling, beams, extra)
        else:
            prompts = self._prompts(ids, max_new_tokens)
            engine = Engine(
                model=self,
                prompts=prompts,
                stopping=stopping,
                sampling=sampling,
                text=text,
                chunk=prompt_chunk,
                source=extra,
            )
            with evaluating(self):
                for _ in engine.steps():
                    pass
            found = [_grown(row.prompt, row.watch.tokens) for row in engine.rows]
        if isinstance(ids, Tensor):
            return _stacked(found) if found else ids
        return found

    def stream(
        self,
        ids: Tensor | Sequence[Tensor],
        max_new_tokens: int,
        *,
        text: TextCodec,
        sampling: Sampling | None = None,
        stop: Stop = None,
        prompt_chunk: int | None = None,
        source: Tensor | None = None,
        source_valid: Tensor | None = None,
        source_marks: Marks | None = None,
    ) -> Iterator[Piece]:
        """Pieces of text as they come, never half a character nor a part of a stop string.

        The pieces of a row concatenated are its text; the last of them says why the row ended. The
        model stays in `eval` mode until the iterator is exhausted or closed.
        """
        engine = Engine(
            model=self,
            prompts=self._prompts(ids, max_new_tokens),
            stopping=Stopping.at(max_new_tokens, stop),
            sampling=sampling or Sampling(),
            text=text,
            chunk=prompt_chunk,
            source=self._source(source, source_valid, source_marks),
        )
        return self._pieces(engine)

    def _pieces(self, engine: Engine) -> Iterator[Piece]:
        with evaluating(self):
            for row in engine.rows:
                if row.watch.reason is not None:
                    yield Piece(row=row.number, text="", tokens=(), reason=row.watch.reason)
            for step in engine.steps():
                watch = step.watch
                if step.text or watch.reason is not None:
                    tokens = tuple(watch.tokens)
                    yield Piece(row=step.row, text=step.text, tokens=tokens, reason=watch.reason)

    def _searched(
        self,
        ids: Tensor | Sequence[Tensor],
        stopping: Stopping,
        sampling: Sampling,
        beams: Beams | int,
        source: dict[str, Any],
    ) -> list[Tensor]:
        if sampling != Sampling(seed=sampling.seed):
            raise WeftError(
                "beams search for the most probable text without sampling; "
                f"leave out the settings of {sampling}"
            )
        if stopping.strings:
            raise WeftError("beam search ends at tokens; give ids as stop, not strings")
        beams = Beams(width=beams) if isinstance(beams, int) else beams
        rows = self._prompts(ids, stopping.new_tokens)
        found: dict[int, Tensor] = {}
        with evaluating(self):
            for length in sorted({len(row) for row in rows}):
                group = [i for i, row in enumerate(rows) if len(row) == length]
                own = source_rows(source, torch.tensor(group), rows[0].device)
                together = torch.stack([rows[i] for i in group])  # (b, n)
                new = stopping.new_tokens
                best = beam_search(self, together, new, sorted(stopping.tokens), beams, own)
                for i, hypotheses in zip(group, best, strict=True):
                    found[i] = _grown(rows[i], hypotheses[0].tokens)
        return [found[i] for i in range(len(rows))]

    def _prompts(self, ids: Tensor | Sequence[Tensor], new: int) -> list[Tensor]:
        device = _device(self)
        rows = [_checked(row).to(device, torch.long) for row in ids]
        for row in rows:
            # The last token is returned, never an input.
            self.check_prompt(row, len(row) + max(new - 1, 0))
        return rows

    def _source(
        self, source: Tensor | None, source_valid: Tensor | None, source_marks: Marks | None = None
    ) -> dict[str, Any]:
        given = {"source": source, "source_valid": source_valid, "source_marks": source_marks}
        found = {name: value for name, value in given.items() if value is not None}
        return {"source": source, "source_valid": source_valid, **found} if found else {}


# Modules that trained before they began to decode, and how many decodings are under way in each.
_decoding: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
_decoding_lock = Lock()


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """No dropout inside; every module trains again when the last decoding that uses it has ended.

    Decodings of several threads, and streams that are read in turns, overlap: the first to end
    must not bring dropout back to the others.
    """
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    with _decoding_lock:
        paused = [module for module in modules if module.training or module in _decoding]
        for module in paused:
            _decoding[module] = _decoding.get(module, 0) + 1
            module.training = False
    try:
        yield
    finally:
        with _decoding_lock:
            for module in paused:
                _decoding[module] -= 1
                if not _decoding[module]:
                    del _decoding[module]
                    module.training = True


def _device(model: Any) -> torch.device:
    return model.device if hasattr(model, "device") else next(model.parameters()).device


def _checked(row: Tensor) -> Tensor:
    if not isinstance(row, Tensor) or row.dim() != 1 or row.is_floating_point() or not len(row):
        raise WeftError(
            "prompts are integer ids, (batch, length) or a list of (length,), with at least one "
            f"token each; got a row {tuple(row.shape) if isinstance(row, Tensor) else row!r}"
        )
    return row


def _grown(prompt: Tensor, tokens: Sequence[int]) -> Tensor:
    return torch.cat((prompt, prompt.new_tensor(list(tokens))))


def _stacked(rows: list[Tensor]) -> Tensor:
    """(b, length of the longest); a shorter row repeats its last token, the one that ended it."""
    longest = max(map(len, rows))
    return torch.stack([torch.cat((row, row[-1:].expand(longest - len(row)))) for row in rows])
