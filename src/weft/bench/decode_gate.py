"""The gate before a native number: it has to compute what the torch model computes.

Both read a short prompt, and the scores of the next token are compared by the cosine of the angle
between them. Float32 agrees to rounding. With rounded weights the controller of a sparse
feed-forward chooses a few other units, which moves the scores of a random model visibly.
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
    """Cosine between the native scores and torch's; too small a one raises."""
    ids = prompt(model.config.trunk.embedding.vocab, PROMPT)
    ours, _ = way.model.next_scores(ids, way.model.start(1))
    theirs, _ = model.next_scores(ids, model.start(1))
    found = float(F.cosine_similarity(ours.double(), theirs.double())[0])
    least = min(LEAST[each] for each in way.precision.values())
    if not found >= least:
        raise WeftError(
            f"native and torch disagree: the cosine of their scores is {found:.4f}, and at least "
            f"{least} at {way.precision}"
        )
    return found
