"""What a model learns: objectives turn a model and a batch into a loss."""

from weft.objectives.base import OBJECTIVES, Head, Loss, Objective, higher_is_better
from weft.objectives.batch import Batch
from weft.objectives.causal_lm import CausalLM
from weft.objectives.classify import Classify
from weft.objectives.masked_lm import MaskedLM
from weft.objectives.match import Match

__all__ = [
    "OBJECTIVES",
    "Batch",
    "CausalLM",
    "Classify",
    "Head",
    "Loss",
    "MaskedLM",
    "Match",
    "Objective",
    "higher_is_better",
]
