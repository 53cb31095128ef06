"""The loss of each token of long rows, without the scores of a whole row at one time.

A decoder predicts the next token; an encoder with a masked-language-model head the masked ones.
A place without a prediction holds NaN: the first token of a row, or one that is not masked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from weft.errors import Unsupported, WeftError
from weft.interop.hf.convert.form import is_decoder
from weft.kernels.linear_cross_entropy import linear_cross_entropy

_MASKED = 0.15  # as BERT: of these, 8 in 10 are masked, 1 in 10 drawn, 1 in 10 left
_CHECKED = 64  # tokens on which our loss is compared with the model's own
_IGNORED = -100

TokenLosses = Callable[[PreTrainedModel, Tensor, int], Tensor]  # model, ids (b, n), draw -> (b, n)


@dataclass(frozen=True)
class CausalLosses:
    """−log p(x_t | x_<t) at place t."""

    chunk: int = 4096  # tokens whose scores over the vocabulary are held at once

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
        given, chosen = self.masked(ids, draw, model.config.vocab_size)
        scores: Any = model(input_ids=given).logits  # (b, n, v)
        losses = F.cross_entropy(scores[chosen].float(), ids[chosen], reduction="none")
        out = torch.full(ids.shape, float("nan"), device=ids.device)
        return out.masked_scatter(chosen, losses)

    def masked(self, ids: Tensor, draw: int, vocab: int) -> tuple[Tensor, Tensor]:
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
    model: PreTrainedModel, rows: Tensor, losses: TokenLosses, chunk: int | None = None
) -> Tensor:
    """Mean loss at each place of rows (r, n): (n,); NaN where nothing was predicted.

    `chunk`: the rows are read in pieces of this length, each by itself.
    """
    model.eval()
    length = rows.shape[1]
    device, total, count = model.device, torch.zeros(length), torch.zeros(length)
    for at, row in enumerate(rows):
        for start in range(0, length, chunk or length):
            piece = row[None, start : start + (chunk or length)].long().to(device)
            found = losses(model, piece, at)[0].float().cpu()
            span = slice(start, start + len(found))
            total[span] += found.nan_to_num()
            count[span] += found.isfinite()
    return total / count  # 0 / 0 is NaN


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
