"""Mask-predict: write a whole target at once, then again where it is least sure.

    step 0        all N tokens are masked; each gets its best token y_i, with probability p_i
    step t < T    the ⌊N·(T − t)/T⌋ tokens of lowest p_i are masked and written again

T steps, whatever the length. The most probable lengths are tried in one batch, and the target with
the highest mean log p_i is taken.

Paper: Ghazvininejad et al. 2019, section 3, https://arxiv.org/abs/1904.09324
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.generate.decoding import evaluating
from weft.layers.marks import Marks
from weft.models.heads.conditional_masked import ConditionalMaskedModule, Encoded


@torch.no_grad()
def mask_predict(
    model: ConditionalMaskedModule,
    source: Tensor,
    iterations: int = 10,
    *,
    candidates: int = 5,
    source_valid: Tensor | None = None,
    source_marks: Marks | None = None,
) -> list[Tensor]:
    """A target (n,) for each source of (b, m), n the best of the candidate lengths."""
    if iterations < 1 or candidates < 1:
        raise WeftError(
            "mask_predict needs an iteration and a candidate at least; "
            f"got iterations={iterations}, candidates={candidates}"
        )
    with evaluating(model):
        encoded = model.encode(source, source_valid, source_marks)
        some = min(candidates, model.config.longest)
        # Length 0 would win by having no token to be unsure of.
        lengths = encoded.lengths[:, 1:].topk(some).indices + 1  # (b, candidates)
        written, sure, real = rewritten(
            model, encoded.repeated(some), lengths.flatten(), iterations
        )
    mean = (sure * real).sum(1) / real.sum(1)  # (b · candidates,)
    best = mean.view(len(source), some).argmax(1)  # (b,)
    return [
        written[row * some + place][: int(lengths[row, place])]
        for row, place in enumerate(best.tolist())
    ]


def rewritten(
    model: ConditionalMaskedModule, encoded: Encoded, lengths: Tensor, iterations: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Targets of these lengths (b,): ids, log-probabilities and where they are real, all (b, n)."""
    place = torch.arange(int(lengths.max()), device=lengths.device)
    real = place < lengths[:, None]  # (b, n)
    ids = torch.zeros_like(real, dtype=torch.long)
    sure = torch.zeros_like(real, dtype=encoded.lengths.dtype)
    for step in range(iterations):
        count = lengths * (iterations - step) // iterations  # (b,)
        order = sure.masked_fill(~real, float("inf")).argsort(dim=1, stable=True)
        hidden = (order.argsort(1) < count[:, None]) & real  # (b, n)
        scores = model.decode(ids.masked_fill(hidden, model.mask), encoded, real)
        scores[..., model.mask] = float("-inf")
        found, best = scores.log_softmax(-1).max(-1)  # (b, n)
        ids, sure = torch.where(hidden, best, ids), torch.where(hidden, found, sure)
    return ids, sure, real
