"""The engine: reads prompts in parallel, then decodes token by token in as few batches as it can.

    model.start(batch, **source) -> state        before the first token
    model.next_scores(ids, state) -> scores, state    new ids (b, n) -> (b, vocab) of the next token
    state.select(rows)                           the state of some rows

Rows in one batch have consumed equally many tokens, so there is no padding, and each row has the
result it would have alone (batched matrix products may round differently). Prompts of one length
are read together, the shortest first; when rows have grown as long as the next longer prompts,
those are read too and join the batch. A row that has ended leaves it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.generate.joining import CannotJoin, joined
from weft.generate.sampling import Sampling
from weft.generate.stopping import StopChecker, Stopping
from weft.generate.text import TextCodec


@dataclass
class DecodingRow:
    """One prompt, its new tokens, and its random numbers."""

    number: int
    prompt: Tensor  # (n,)
    watch: StopChecker
    generator: torch.Generator


@dataclass
class DecodingBatch:
    """Rows that have consumed equally many tokens, and the scores of their next ones."""

    rows: list[DecodingRow]
    state: Any
    scores: Tensor  # (b, vocab)
    position: int
    seen: Tensor | None = None  # (b, vocab) earlier tokens, where sampling depends on them


@dataclass(frozen=True, kw_only=True)
class DecodedToken:
    """One row's next token, and the text that is certain with it."""

    row: int
    token: int
    text: str
    watch: StopChecker


@dataclass(kw_only=True)
class Engine:
    """Continues prompts; `steps` yields each row's tokens as they come."""

    model: Any
    prompts: Sequence[Tensor]
    stopping: Stopping
    sampling: Sampling = field(default_factory=Sampling)
    text: TextCodec | None = None
    chunk: int | None = None  # tokens of a prompt read at a time; None: all at once
    source: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.chunk is not None and self.chunk < 1:
            raise WeftError(f"a prompt is read at least 1 token at a time; got {self.chunk}")
        given = self.source.get("source")
        if given is not None and len(given) != len(self.prompts):
            raise WeftError(f"one source for each prompt: got {len(given)} and {len(self.prompts)}")
        generators = self.sampling.generators(len(self.prompts))
        self.rows = [
            DecodingRow(number, prompt, self.stopping.watch(prompt.tolist(), self.text), own)
            for number, (prompt, own) in enumerate(zip(self.prompts, generators, strict=True))
        ]

    @torch.no_grad()
    def steps(self) -> Iterator[DecodedToken]:
        """Until every row has ended."""
        waiting: dict[int, list[DecodingRow]] = {}
        for row in sorted(self.rows, key=lambda row: len(row.prompt)):
            if row.watch.reason is None:
                waiting.setdefault(len(row.prompt), []).append(row)
        running: list[DecodingBatch] = []
        while waiting or running:
            shortest = min([*waiting, *(batch.position for batch in running)])
            if shortest in waiting:
                running.append(self.read(waiting.pop(shortest)))
            running = _merged(running)
            batch = min(running, key=lambda batch: batch.position)
            yield from self.advance(batch)
            if not batch.rows:
                running.remove(batch)

    def read(self, rows: list[DecodingRow]) -> DecodingBatch:
        """Read prompts of equal length."""
        ids = torch.stack([row.prompt for row in rows])  # (b, n)
        numbers = torch.tensor([row.number for row in rows])
        own = source_rows(self.source, numbers, ids.device)
        state = self.model.start(len(rows), **own)
        for part in ids.split(self.chunk or ids.shape[1], dim=1):
            scores, state = self.model.next_scores(part, state)
        seen = None
        if self.sampling.remembers:
            seen = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, ids, True)
        return DecodingBatch(rows, state, scores, ids.shape[1], seen)

    def advance(self, batch: DecodingBatch) -> Iterator[DecodedToken]:
        """Choose one token for each row; rows that end leave, the others are fed to the model."""
        generators = [row.generator for row in batch.rows]
        tokens = self.sampling.pick(batch.scores, generators, batch.seen)  # (b,)
        if batch.seen is not None:
            batch.seen = batch.seen.scatter(1, tokens[:, None], True)
        found = []
        for row, token in zip(batch.rows, tokens.tolist(), strict=True):
            found.append(
                DecodedToken(
                    row=row.number, token=token, text=row.watch.push(token), watch=row.watch
                )
            )
        going = [at for at, row in enumerate(batch.rows) if row.watch.reason is None]
        # Before the model runs again: text is shown as early as possible.
        yield from found
        if len(going) < len(batch.rows):
            batch.rows = [batch.rows[at] for at in going]
            index = torch.tensor(going, device=tokens.device)
            batch.state = batch.state.select(index) if going else None
            tokens = tokens[index] if going else tokens
            batch.seen = batch.seen[index] if batch.seen is not None and going else batch.seen
        if going:
            batch.scores, batch.state = self.model.next_scores(tokens[:, None], batch.state)
            batch.position += 1


def _merged(running: list[DecodingBatch]) -> list[DecodingBatch]:
    """Batches at the same position as one, where their states can be joined."""
    found: list[DecodingBatch] = []
    for batch in running:
        place = next((i for i, other in enumerate(found) if other.position == batch.position), -1)
        both = None if place < 0 else _joined(found[place], batch)
        if both is None:
            found.append(batch)
        else:
            found[place] = both
    return found


def _joined(one: DecodingBatch, other: DecodingBatch) -> DecodingBatch | None:
    # Selecting rows drops the spare room of caches, which may differ.
    states = [batch.state.select(torch.arange(len(batch.rows))) for batch in (one, other)]
    try:
        state = joined(states)
        seen = joined([one.seen, other.seen])
    except CannotJoin:
        return None
    scores = torch.cat((one.scores, other.scores))
    return DecodingBatch(one.rows + other.rows, state, scores, one.position, seen)


def source_rows(source: dict[str, Any], rows: Tensor, device: torch.device) -> dict[str, Any]:
    """These rows of a source, its mask and its marks, on a device."""

    def chosen(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[rows.to(value.device)].to(device)
        return None if value is None else {name: chosen(mark) for name, mark in value.items()}

    return {name: chosen(value) for name, value in source.items()}
