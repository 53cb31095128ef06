"""A classifier of DNA that reads either strand: one at random in training, else both.

    training     scores of x or of its reverse complement, each with probability 1/2, row by row
    else         log of the mean of both strands' probabilities

The reverse complement is the tokens backwards, each replaced by that of the other strand
(`weft.dna.bases`); k of the k-mers follows from the vocabulary, 4^k + 1.

After Shrikumar et al. 2017, https://doi.org/10.1101/103663, whose baseline does the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from weft.dna.bases import MOST, Kmers
from weft.errors import WeftError
from weft.layers.marks import Marks, refuse_marks
from weft.layers.padding import real_tokens
from weft.models.heads.document import Classifier, ClassifierModule
from weft.models.registry import MODELS
from weft.models.usage.predict import is_text


@MODELS.register("strand_classifier")
@dataclass(frozen=True, kw_only=True)
class StrandClassifier(Classifier):
    """One of `classes` for each sequence, whichever strand is given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        vocab = self.trunk.embedding.vocab
        if vocab not in [4**k + 1 for k in range(1, MOST + 1)]:
            raise WeftError(
                "the other strand is known for tokens of bases: a vocab of 4^k + 1 with k from 1 "
                f"to {MOST}; got vocab={vocab}"
            )

    def build(self) -> StrandClassifierModule:
        return StrandClassifierModule(self)


class StrandClassifierModule(ClassifierModule):
    """Sequences (b, n) -> scores (b, classes)."""

    complements: Tensor

    def __init__(self, config: StrandClassifier) -> None:
        super().__init__(config)
        k = round(log((config.trunk.embedding.vocab or 5) - 1, 4))
        table = torch.from_numpy(Kmers(k=k).complements())
        self.register_buffer("complements", table, persistent=False)

    def forward(
        self,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        attention_mask: Tensor | None = None,
        marks: Marks | None = None,
    ) -> Tensor:
        """Scores (b, classes); `valid` or `attention_mask` (b, n) marks the real tokens."""
        if is_text(x):
            return self.predict(x)
        refuse_marks(marks, "a marked token has another place on the other strand")
        valid = real_tokens(x, valid, attention_mask)
        if not self.training:
            sides = [super().forward(x, valid=valid)]
            other = None if valid is None else valid.flip(1)
            sides.append(super().forward(self.other(x, valid), valid=other))
            both = torch.stack([side.log_softmax(-1) for side in sides])  # (2, b, classes)
            return both.logsumexp(0) - log(2)
        turned = torch.rand(len(x), device=x.device) < 0.5  # (b,)
        if valid is not None:
            other = torch.where(turned[:, None], valid.flip(1), valid)
        x = torch.where(turned[:, None], self.other(x, valid), x)
        return super().forward(x, valid=None if valid is None else other)

    def other(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """The other strand (b, n), whose padding is at the other end."""
        ids = x if valid is None else x.masked_fill(~valid, 0)
        return self.complements[ids.long()].flip(1)
