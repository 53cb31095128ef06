"""The gate before a native number: the native model must compute what the torch model computes.

Both read a short prompt, and the scores of the next token are compared by cosine similarity.
Float32 agrees up to rounding. With rounded weights the controller of a sparse feed-forward chooses
a few other units, which changes the scores of a random model visibly.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from weft.bench.decode_paths import prompt
from weft.errors import WeftError

PROMPT = 3
LEAST = {"float32": 0.999, "bfloat16": 0.9, "int8": 0.8}


@torch.no_grad()
def agreement(way: Any, model: Any) -> float:
    """Cosine similarity of the native scores and torch's; raises if it is too small."""
    ids = prompt(model.config.trunk.embedding.vocab, PROMPT)
    ours, _ = way.model.next_scores(ids, way.model.start(1))
    theirs, _ = model.next_scores(ids, model.start(1))
    found = float(F.cosine_similarity(ours.double(), theirs.double())[0])
    least = min(LEAST[each] for each in way.precision.values())
    if not found >= least:
        raise WeftError(
            f"native and torch disagree: the cosine similarity of their scores is {found:.4f}, and "
            f"it is at least {least} for {way.precision}"
        )
    return found
