"""Fill-mask: the most probable tokens in the places of mask tokens.

The mask token is `model.mask`: the last id, as `masked_lm`, `permuted_lm` and `mpnet` leave it, or
that of the checkpoint which the model was read from.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.generate.decoding import evaluating
from weft.layers.marks import Marks
from weft.models.heads.language_model import LanguageModelModule
from weft.models.trunks.encoder import Encoder


class Filled(NamedTuple):
    """The predictions at the mask tokens."""

    ids: Tensor  # (b, n): the text with the most probable tokens
    places: Tensor  # (masks, 2): row and index of each mask
    tokens: Tensor  # (masks, top), most probable first
    probabilities: Tensor  # (masks, top)


@torch.no_grad()
def fill_mask(
    model: LanguageModelModule,
    ids: Tensor,
    *,
    valid: Tensor | None = None,
    marks: Marks | None = None,
    top: int = 5,
) -> Filled:
    """Ids (b, n) with masks -> the `top` tokens for each mask."""
    if not isinstance(model.config.trunk, Encoder):
        raise WeftError(
            "gaps are filled by a language model on an Encoder, which reads both ways; "
            f"got {type(model.config.trunk).__name__}"
        )
    mask = model.mask
    if not 1 <= top <= model.last_id:
        raise WeftError(f"top is 1 to {model.last_id} tokens; got top={top}")
    hidden = ids == mask if valid is None else (ids == mask) & valid  # (b, n)
    with evaluating(model):
        scores = model(ids, valid=valid, marks=marks)[hidden]  # (masks, vocab)
    scores[:, mask] = float("-inf")
    probabilities, tokens = scores.softmax(-1).topk(top)
    filled = ids.clone()
    filled[hidden] = tokens[:, 0]
    return Filled(filled, hidden.nonzero(), tokens, probabilities)
