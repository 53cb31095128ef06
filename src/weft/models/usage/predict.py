"""`model.predict(texts)`: labels of texts, from a model that knows its labels and its tokenizer.

Texts are taken in chunks; inside a chunk they are sorted by length and batched up to a number of
tokens, so memory is bounded and little is padding. The same texts in the same order give the same
chunks and so the same numbers, in Python and on the command line. What a mechanism draws at random
(hashes, features) is drawn from one seed for each batch. Threads take turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.errors import WeftError
from weft.generate.text import tokenizer_of
from weft.models.usage.inputs import reads_of
from weft.models.usage.mark_rules import Rules, marks_by, read_rules
from weft.models.usage.record import Label, Usage
from weft.models.usage.texts import encode, global_spans, with_lead

CHUNK, CHUNK_CHARACTERS = 1024, 8_000_000  # of texts that are sorted by length together
BATCH_TOKENS = 16_384  # of a batch, padding included
_TURN = Lock()  # torch's random state is one for all threads
_cached_tokenizer = lru_cache(maxsize=4)(tokenizer_of)


@dataclass(frozen=True)
class Document:
    """What a model judges: a text, perhaps led by a global one, perhaps paired with another."""

    text: str
    second: str = ""
    lead: str = ""
    row: np.ndarray | None = None  # the inputs, where they are not text

    @property
    def characters(self) -> int:
        """Of all its texts."""
        own = 0 if self.row is None else len(self.row)
        return own + len(self.text) + len(self.second) + len(self.lead)


class Predicts:
    """A module that judges documents; `usage` is set by `load`, `fit` and training."""

    usage: Usage | None = None

    def predict(self, texts: Any, *, proba: bool = False, batch_tokens: int = BATCH_TOKENS) -> Any:
        """The label of each text, or with `proba` a dict of each label's probability.

        A text is a string; for a matcher, a pair of strings; where columns have names that matter,
        such as a question put in front, a mapping of columns. One text gives one answer, a list
        of texts a list. A regression gives numbers.
        """
        if isinstance(texts, str | Mapping) or _is_pair(texts, self.usage):
            return self.predict([texts], proba=proba, batch_tokens=batch_tokens)[0]
        usage = usable(self)
        documents = [document(text, usage, f"text {i}") for i, text in enumerate(texts, start=1)]
        scores = [scores_of(self, chunk, batch_tokens) for chunk in chunks(documents)]
        return answers(np.concatenate(scores), usage, proba) if scores else []


def usable(model: Any) -> Usage:
    """The usage of a model that can predict from text; else an error that says what to do."""
    usage = getattr(model, "usage", None)
    if usage is None:
        raise WeftError(
            "this model was saved without its labels and tokenizer (by weft 0.1.0, or before any "
            "training), so it cannot read text; call it with ids: model(ids, valid=...) gives the "
            "scores (b, classes), class 0 first"
        )
    if usage.kind not in ("classify", "match", "regress"):
        raise WeftError(
            f"predict gives labels, and this model learned {usage.kind!r}; text is continued by "
            "`weft generate RUN --prompt ...` and model.generate(ids, max_new_tokens=...)"
        )
    if usage.events:
        raise WeftError(
            "this model reads events of clients, not texts: weft predict RUN --events FILE, or "
            "weft.predict_events(model, FILE)"
        )
    if usage.tokens == "none" and reads_of(usage) is None:
        raise WeftError(
            f"the task {usage.task!r} is not made of text; call the model with ids: model(ids)"
        )
    return usage


def document(given: Any, usage: Usage, where: str) -> Document:
    """A document from a string, a pair or a mapping of columns."""
    if (reads := reads_of(usage)) is not None:
        if isinstance(given, Mapping) and not usage.modalities:
            given = given.get(usage.columns.get("text", "text"), "")
        try:
            return Document("", row=reads.row(given))
        except WeftError as cause:
            raise WeftError(f"{where}: {cause}") from cause
    names = ["text", *(("second",) if usage.is_pair else ())]
    names += ["global_text"] if "global_text" in usage.columns else []
    if isinstance(given, Mapping):
        columns = [usage.columns.get(name, name) for name in names]
        for column in columns:
            if column not in given:
                raise WeftError(f"{where} has no {column!r}; it has {', '.join(map(str, given))}")
        parts = [given[column] for column in columns]
    else:
        parts = list(given) if isinstance(given, tuple | list) else [given]
        if len(parts) != len(names) or "global_text" in names:
            wanted = [usage.columns.get(name, name) for name in names]
            form = "a mapping with" if "global_text" in names else "a tuple of"
            form = "a string" if len(names) == 1 else f"{form} {' and '.join(wanted)}"
            raise WeftError(f"{where} is {form} for this model; got {given!r:.60}")
    for name, part in zip(names, parts, strict=True):
        if not isinstance(part, str):
            raise WeftError(f"{where}: {name} is a string; got {part!r:.60}")
        if not part.strip():
            raise WeftError(f"{where}: {name} is empty; leave such rows out")
    found = dict(zip(names, parts, strict=True))
    return Document(found["text"], found.get("second", ""), found.get("global_text", ""))


def chunks(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Documents in lists of bounded size."""
    chunk: list[Document] = []
    characters = 0
    for each in documents:
        chunk.append(each)
        characters += each.characters
        if len(chunk) == CHUNK or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def answers(scores: np.ndarray, usage: Usage, proba: bool) -> list[Any]:
    """Scores (n, classes) as labels or probabilities; of a regression, numbers."""
    if usage.kind == "regress":
        if proba:
            raise WeftError("a regression predicts numbers; it has no probabilities: proba=False")
        return (usage.offset + usage.scale * scores[:, 0].astype(np.float64)).tolist()
    labels: Sequence[Label] = usage.labels or range(scores.shape[1])
    if not proba:
        return [labels[place] for place in scores.argmax(1)]
    shares = torch.from_numpy(scores).softmax(-1).tolist()
    return [dict(zip(labels, row, strict=True)) for row in shares]


@torch.no_grad()
def scores_of(model: Any, documents: Sequence[Document], batch_tokens: int) -> np.ndarray:
    """The scores (n, classes) of a chunk, float32."""
    usage = model.usage
    made = [each.row for each in documents if each.row is not None]
    if made:  # they are not text
        sides: Any = [([row[: usage.length] if usage.length else row for row in made], None)]
    else:
        sides = [_encoded([(each.lead, each.text) for each in documents], usage)]
    if usage.is_pair:
        sides.append(_encoded([("", each.second) for each in documents], usage))
    lengths = np.max([[len(ids) for ids in rows] for rows, _ in sides], axis=0)
    order = np.argsort(lengths, kind="stable")
    rules = read_rules(usage.marks)
    found: np.ndarray | None = None
    training = model.training
    if training:
        model.eval()
    try:
        for index in batches_of(order, lengths, batch_tokens):
            scores = _forward(model, [_padded(side, index, rules) for side in sides])
            if found is None:
                found = np.zeros((len(documents), scores.shape[1]), dtype=np.float32)
            found[index] = scores.float().cpu().numpy()
    finally:
        if training:
            model.train()
    assert found is not None
    return found


def _forward(model: Any, sides: list[dict[str, Any]]) -> Tensor:
    device = next(model.parameters()).device
    sides = [{name: _to(value, device) for name, value in side.items()} for side in sides]
    cuda = [device] if device.type == "cuda" else []
    with _TURN, torch.random.fork_rng(devices=cuda):
        # Without a GPU torch.manual_seed formats the stack, for a later call, at every batch.
        seed = torch.manual_seed if cuda else torch.default_generator.manual_seed
        seed(0)
        if len(sides) == 1:
            return model(sides[0].pop("ids"), **sides[0])
        first, second = sides
        return model(
            first["ids"],
            second["ids"],
            **{f"first_{name}": value for name, value in first.items() if name != "ids"},
            **{f"second_{name}": value for name, value in second.items() if name != "ids"},
        )


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, Mapping):
        return {name: _to(each, device) for name, each in value.items()}
    return None if value is None else value.to(device)


def _encoded(
    pairs: Sequence[tuple[str, str]], usage: Usage
) -> tuple[list[np.ndarray], list[np.ndarray] | None]:
    """Ids of the texts behind their leads, cut to the length, and which of them are global."""
    tokenizer = None if usage.tokenizer is None else _cached_tokenizer(usage.tokenizer)
    texts = [with_lead(lead, text) for lead, text in pairs]
    spans = None
    if usage.marks_global:
        own = zip(texts, pairs, strict=True)
        spans = [global_spans(text, len(lead), usage.global_after) for text, (lead, _) in own]
    rows, marks = encode(texts, tokenizer, spans)
    cut = [row[: usage.length] for row in rows] if usage.length else rows
    if marks is not None and usage.length:
        marks = [mark[: usage.length] for mark in marks]
    for text, row in zip(texts, cut, strict=True):
        if not len(row):
            raise WeftError(f"the tokenizer finds no token in {text!r:.60}; leave such rows out")
    return cut, marks


def batches_of(order: np.ndarray, lengths: np.ndarray, tokens: int) -> Iterator[np.ndarray]:
    """Places of neighbours in length, as many as fit the tokens when padded."""
    start = 0
    for end in range(1, len(order) + 1):
        full = end == len(order) or (end - start + 1) * lengths[order[end]] > tokens
        if full:
            yield order[start:end]
            start = end


def _padded(
    side: tuple[list[np.ndarray], list[np.ndarray] | None], index: np.ndarray, rules: Rules
) -> dict[str, Any]:
    """Ids (b, n), valid (b, n) or None, and marks of the rows of a batch."""
    rows, marks = side
    kinds = [np.float32 if rows[place].dtype.kind == "f" else np.int64 for place in index]
    chosen = [
        torch.from_numpy(rows[at].astype(kind)) for at, kind in zip(index, kinds, strict=True)
    ]
    ids = torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True)
    sizes = torch.tensor([len(row) for row in chosen])
    real = torch.arange(ids.shape[1]) < sizes[:, None]  # (b, n)
    if ids.is_floating_point():  # NaN lacks
        real &= ~ids.isnan().any(-1) if ids.dim() == 3 else ~ids.isnan()
        ids = ids.nan_to_num(0.0)
    found: dict[str, Any] = {"ids": ids, "valid": None if bool(real.all()) else real}
    given = {}
    if marks is not None:
        own = [torch.from_numpy(marks[place]) for place in index]
        given["is_global"] = torch.nn.utils.rnn.pad_sequence(own, batch_first=True)
    if rules or given:
        found["marks"] = marks_by(rules, ids, found["valid"], given)
    return found


def is_text(given: Any) -> bool:
    """Whether a model was called with text instead of ids."""
    return isinstance(given, str | list | tuple | Mapping)


def _is_pair(given: Any, usage: Usage | None) -> bool:
    """Whether this is one pair of texts, not a list of texts."""
    pair = usage is not None and usage.is_pair and isinstance(given, tuple) and len(given) == 2
    return pair and all(isinstance(each, str) for each in given)
