"""The engine: prompts in parallel, then token by token, rows in one batch whenever they can be.

    model.start(batch, **source) -> state        before the first token
    model.next_scores(ids, state) -> scores, state    new ids (b, n) -> (b, vocab) of the next token
    state.select(rows)                           the state of some rows

Rows in one batch have consumed equally many tokens, so no padding enters, and each row comes out
as if it were alone (batched matrix products may round differently). Prompts of one length are read
together. The shortest begin; when they have grown as long as the next longer prompts, those are
read too and join the batch. A row that has ended leaves it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.generate.joining import Misfit, joined
from weft.generate.sampling import Sampling
from weft.generate.stopping import Stopping, Watch
from weft.generate.text import Text


@dataclass
class Row:
    """One prompt, what follows it, and its random numbers."""

    number: int
    prompt: Tensor  # (n,)
    watch: Watch
    chance: torch.Generator


@dataclass
class Batch:
    """Rows that have consumed equally many tokens, and the scores of their next ones."""

    rows: list[Row]
    state: Any
    scores: Tensor  # (b, vocab)
    position: int
    seen: Tensor | None = None  # (b, vocab) tokens that were read, where that matters


@dataclass(frozen=True, kw_only=True)
class Step:
    """One row's next token, and the text that is certain with it."""

    row: int
    token: int
    text: str
    watch: Watch


@dataclass(kw_only=True)
class Engine:
    """Continues prompts; `steps` yields each row's tokens as they come."""

    model: Any
    prompts: Sequence[Tensor]
    stopping: Stopping
    sampling: Sampling = field(default_factory=Sampling)
    text: Text | None = None
    chunk: int | None = None  # tokens of a prompt read at a time; None: all at once
    source: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.chunk is not None and self.chunk < 1:
            raise WeftError(f"a prompt is read at least 1 token at a time; got {self.chunk}")
        given = self.source.get("source")
        if given is not None and len(given) != len(self.prompts):
            raise WeftError(f"one source for each prompt: got {len(given)} and {len(self.prompts)}")
        chances = self.sampling.generators(len(self.prompts))
        self.rows = [
            Row(number, prompt, self.stopping.watch(prompt.tolist(), self.text), chance)
            for number, (prompt, chance) in enumerate(zip(self.prompts, chances, strict=True))
        ]

    @torch.no_grad()
    def steps(self) -> Iterator[Step]:
        """Until every row has ended."""
        waiting: dict[int, list[Row]] = {}
        for row in sorted(self.rows, key=lambda row: len(row.prompt)):
            if row.watch.reason is None:
                waiting.setdefault(len(row.prompt), []).append(row)
        running: list[Batch] = []
        while waiting or running:
            shortest = min([*waiting, *(batch.position for batch in running)])
            if shortest in waiting:
                running.append(self.read(waiting.pop(shortest)))
            running = _merged(running)
            batch = min(running, key=lambda batch: batch.position)
            yield from self.advance(batch)
            if not batch.rows:
                running.remove(batch)

    def read(self, rows: list[Row]) -> Batch:
        """Read prompts of equal length."""
        ids = torch.stack([row.prompt for row in rows])  # (b, n)
        numbers = torch.tensor([row.number for row in rows])
        own = {
            name: value if value is None else value[numbers.to(value.device)].to(ids.device)
            for name, value in self.source.items()
        }
        state = self.model.start(len(rows), **own)
        for part in ids.split(self.chunk or ids.shape[1], dim=1):
            scores, state = self.model.next_scores(part, state)
        seen = None
        if self.sampling.remembers:
            seen = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, ids, True)
        return Batch(rows, state, scores, ids.shape[1], seen)

    def advance(self, batch: Batch) -> Iterator[Step]:
        """Take one token for each row; rows that end leave, the others are read on."""
        chances = [row.chance for row in batch.rows]
        tokens = self.sampling.pick(batch.scores, chances, batch.seen)  # (b,)
        if batch.seen is not None:
            batch.seen = batch.seen.scatter(1, tokens[:, None], True)
        found = []
        for row, token in zip(batch.rows, tokens.tolist(), strict=True):
            found.append(
                Step(row=row.number, token=token, text=row.watch.push(token), watch=row.watch)
            )
        going = [at for at, row in enumerate(batch.rows) if row.watch.reason is None]
        # Handed out before the model works on: text is shown as early as it is known.
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


def _merged(running: list[Batch]) -> list[Batch]:
    """Batches at one position as one, where their states fit together."""
    found: list[Batch] = []
    for batch in running:
        place = next((i for i, other in enumerate(found) if other.position == batch.position), None)
        both = None if place is None else _joined(found[place], batch)
        if both is None:
            found.append(batch)
        else:
            found[place] = both
    return found


def _joined(one: Batch, other: Batch) -> Batch | None:
    # Selected rows leave behind what memory a cache has to spare, which may differ.
    states = [batch.state.select(torch.arange(len(batch.rows))) for batch in (one, other)]
    try:
        state = joined(states)
        seen = joined([one.seen, other.seen])
    except Misfit:
        return None
    scores = torch.cat((one.scores, other.scores))
    return Batch(one.rows + other.rows, state, scores, one.position, seen)
