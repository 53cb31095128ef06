"""A model whose next scores depend on every token so far, in closed form."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from hypothesis import settings
from torch import Tensor

from weft.errors import WeftError
from weft.generate import Decoding

quick = settings(max_examples=60, deadline=None)


@dataclass
class History:
    ids: Tensor  # (b, n)
    position: int = 0
    key: int = 0  # shared by all rows

    def select(self, rows: Tensor) -> History:
        return replace(self, ids=self.ids[rows])


class Toy(Decoding):
    """scores(v) = sharp · sin(number of the history · (v + 1)); counts its calls."""

    device = torch.device("cpu")

    def __init__(self, vocab: int, *, sharp: float = 3.0, limit: int = 10**6, joins: bool = True):
        self.vocab, self.sharp, self.limit, self.joins = vocab, sharp, limit, joins
        self.calls: list[tuple[int, int]] = []

    def start(self, batch: int) -> History:
        return History(torch.zeros(batch, 0, dtype=torch.long), key=0 if self.joins else batch)

    def step(self, ids: Tensor, state: History) -> tuple[Tensor, History]:
        self.calls.append(tuple(ids.shape))
        found = []
        for n in range(ids.shape[1]):
            history = torch.cat((state.ids, ids[:, : n + 1]), dim=1)
            found.append(torch.stack([self.scores(row) for row in history.tolist()]))
        history = torch.cat((state.ids, ids), dim=1)
        return torch.stack(found, 1), replace(state, ids=history, position=history.shape[1])

    def scores(self, history: list[int]) -> Tensor:
        number = 1.0
        for token in history:
            number = (number * 31 + token + 1) % 1009
        return self.sharp * torch.sin(number * torch.arange(1, self.vocab + 1).double())

    def check_prompt(self, ids: Tensor, tokens: int) -> None:
        if tokens > self.limit:
            raise WeftError(f"at most {self.limit} tokens; got {tokens}")


def greedy(model: Toy, prompt: list[int], new: int, ends: tuple[int, ...] = ()) -> list[int]:
    """The truth: one row, no batch, no state."""
    row = list(prompt)
    for _ in range(new):
        row.append(int(model.scores(row).argmax()))
        if row[-1] in ends:
            break
    return row
