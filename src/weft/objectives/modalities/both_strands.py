"""Classification of DNA that does not depend on the strand: `weft.models.heads.strands`.

loss = −log softmax(model(x or its reverse complement))_y, summed over sequences

Evaluation and prediction average both strands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft.models import StrandClassifier
from weft.objectives.base import OBJECTIVES, Head
from weft.objectives.classify import Classify


@OBJECTIVES.register("both_strands")
@dataclass(frozen=True, kw_only=True)
class BothStrands(Classify):
    """Cross-entropy of one class per sequence, read on either strand."""

    def build(self, trunk: Any, head: Head) -> StrandClassifier:
        """A classifier that reads both strands, around the trunk."""
        return StrandClassifier(trunk=trunk, **head.of_documents())
