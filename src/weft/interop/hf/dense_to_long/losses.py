"""The loss of each token of long rows, without the scores of a whole row at one time.

A decoder predicts the next token; an encoder with a masked-language-model head the masked ones.
A place without a prediction holds NaN: the first token of a row, or one that is not masked.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from weft.errors import Unsupported, WeftError
from weft.interop.hf.dense_to_long.form import is_decoder
from weft.interop.hf.dense_to_long.text import Ends
from weft.kernels.linear_cross_entropy import linear_cross_entropy

_MASKED = 0.15  # as BERT: of these, 8 in 10 are masked, 1 in 10 drawn, 1 in 10 left
_CHECKED = 64  # tokens on which our loss is compared with the model's own
NO_ENDS = Ends()


class TokenLosses(Protocol):
    """The loss of a model at each token."""

    def __call__(self, model: PreTrainedModel, ids: Tensor, draw: int = 0) -> Tensor:
        """ids (b, n) -> losses (b, n); `draw` seeds what is drawn."""
        ...

    def drawn(self, ids: Tensor, draw: int, vocab: int) -> tuple[Tensor, Tensor]:
        """What the model reads (b, n), and which places it predicts (b, n)."""
        ...

    def of(self, model: PreTrainedModel, ids: Tensor, given: Tensor, chosen: Tensor) -> Tensor:
        """The losses (b, n) of ids where the model reads `given`; NaN where none is chosen."""
        ...


@dataclass(frozen=True)
class CausalLosses:
    """−log p(x_t | x_<t) at place t."""

    chunk: int = 4096  # tokens whose scores over the vocabulary are held at once

    def drawn(self, ids: Tensor, draw: int, vocab: int) -> tuple[Tensor, Tensor]:
        """The row as it is; every place is predicted."""
        return ids, torch.ones_like(ids, dtype=torch.bool)

    def of(self, model: PreTrainedModel, ids: Tensor, given: Tensor, chosen: Tensor) -> Tensor:
        """ids (b, n) -> losses (b, n); nothing was drawn."""
        return self(model, ids)

    def __call__(self, model: PreTrainedModel, ids: Tensor, draw: int = 0) -> Tensor:
        """ids (b, n) -> losses (b, n), NaN at the first place."""
        body: Any = model.base_model
        head: Any = model.get_output_embeddings()
        hidden = body(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]  # (b, n − 1, c)
        wanted = ids[:, 1:].reshape(-1)
        losses, _ = linear_cross_entropy(hidden.flatten(0, 1), head.weight, wanted, self.chunk)
        return F.pad(losses.view(len(ids), -1), (1, 0), value=float("nan"))


@dataclass(frozen=True)
class MaskedLosses:
    """−log p(x_t | the row with some tokens masked), at the masked places."""

    mask: int  # id of the mask token
    special: tuple[int, ...]  # ids that are never masked

    def __call__(self, model: PreTrainedModel, ids: Tensor, draw: int = 0) -> Tensor:
        """ids (b, n) -> losses (b, n), NaN where nothing was masked; `draw` seeds the choice."""
        return self.of(model, ids, *self.drawn(ids, draw, model.config.vocab_size))

    def of(self, model: PreTrainedModel, ids: Tensor, given: Tensor, chosen: Tensor) -> Tensor:
        """The losses (b, n) of ids where the model reads `given`; NaN where none is chosen."""
        scores: Any = model(input_ids=given).logits  # (b, n, v)
        losses = F.cross_entropy(scores[chosen].float(), ids[chosen], reduction="none")
        out = torch.full(ids.shape, float("nan"), device=ids.device)
        return out.masked_scatter(chosen, losses)

    def drawn(self, ids: Tensor, draw: int, vocab: int) -> tuple[Tensor, Tensor]:
        """The row as the model reads it, and which places it has to predict."""
        rng = torch.Generator().manual_seed(draw)
        real = ~torch.isin(ids.cpu(), torch.tensor(self.special))
        chosen = (torch.rand(ids.shape, generator=rng) < _MASKED) & real
        kind = torch.rand(ids.shape, generator=rng)
        drawn = torch.randint(vocab, ids.shape, generator=rng)
        given = torch.where(chosen & (kind < 0.8), self.mask, ids.cpu())
        given = torch.where(chosen & (kind >= 0.9), drawn, given)
        return given.to(ids.device), chosen.to(ids.device)


def losses_for(
    model: PreTrainedModel, mask: int | None = None, special: tuple[int, ...] = ()
) -> TokenLosses:
    """The loss that this model was trained with."""
    name = type(model).__name__
    if is_decoder(model):
        head: Any = model.get_output_embeddings()
        if head is None or getattr(head, "bias", None) is not None:
            raise Unsupported(f"{name} has no output layer without a bias; weft cannot train it")
        _check_equal(model)
        return CausalLosses()
    if "MaskedLM" not in name:
        raise Unsupported(
            f"{name} has no loss of its own to go on training with; load it with its language "
            "model head (CausalLM or MaskedLM), or convert without --train"
        )
    if mask is None:
        raise WeftError("the tokenizer has no mask token, which a masked language model needs")
    return MaskedLosses(mask, special)


@torch.no_grad()
def _check_equal(model: Any) -> None:
    """Refuse a model that does more with its scores than a product with the output weights."""
    ids = torch.arange(_CHECKED, device=model.device)[None] % model.config.vocab_size
    own = model(input_ids=ids, labels=ids, use_cache=False).loss
    ours = CausalLosses()(model, ids)[:, 1:].mean()
    if not torch.isclose(own.float(), ours.float(), rtol=0.02, atol=0.02):
        raise Unsupported(
            f"the loss of {type(model).__name__} is not the cross-entropy of hidden units times "
            f"output weights ({float(own):.3f} and {float(ours):.3f}); weft cannot train it"
        )


@torch.no_grad()
def loss_by_position(
    model: PreTrainedModel,
    rows: Tensor,
    losses: TokenLosses,
    chunk: int | None = None,
    ends: Ends = NO_ENDS,
) -> Tensor:
    """Mean loss at each place of rows (r, n): (n,); NaN where nothing was predicted.

    `chunk`: the rows are read in pieces of this length, each by itself, between `ends`. A masked
    language model predicts the same places as in the whole row.
    """
    model.eval()
    length = rows.shape[1]
    total, count = torch.zeros(length), torch.zeros(length)
    for at, row in enumerate(rows):
        found = _of_row(model, row, losses, at, chunk or length, ends)
        total += found.nan_to_num()
        count += found.isfinite()
    return total / count  # 0 / 0 is NaN


def _of_row(
    model: PreTrainedModel, row: Tensor, losses: TokenLosses, draw: int, chunk: int, ends: Ends
) -> Tensor:
    """The losses of one row (n,), read in pieces of at most `chunk` tokens."""
    row = row.long().to(model.device)
    given, chosen = losses.drawn(row[None], draw, model.config.vocab_size)
    if chunk >= len(row):
        return losses.of(model, row[None], given, chosen)[0].float().cpu()
    out = torch.full(row.shape, float("nan"))
    inside = ends.inside(row)
    for start in range(inside.start, inside.stop, chunk - ends.count):
        span = slice(start, min(start + chunk - ends.count, inside.stop))
        ids, read = ends.around(row[span]), ends.around(given[0, span])
        own = torch.zeros_like(ids, dtype=torch.bool)
        own[ends.inside(ids)] = chosen[0, span]
        found = losses.of(model, ids[None], read[None], own[None])[0]
        out[span] = found[ends.inside(ids)].float().cpu()
    return out


def bins_of(length: int, trained: int) -> list[tuple[int, int]]:
    """Spans of positions: to a quarter of the trained length, to it, then doubling."""
    edges = [0, max(1, trained // 4), trained]
    while edges[-1] < length:
        edges.append(min(length, edges[-1] * 2))
    edges = [edge for edge in edges if edge < length] + [length]
    return list(pairwise(edges))


def in_bins(losses: Tensor, bins: list[tuple[int, int]]) -> dict[str, float]:
    """The mean of losses (n,) in spans of positions."""
    return {f"{low}-{high}": float(losses[low:high].nanmean()) for low, high in bins}
