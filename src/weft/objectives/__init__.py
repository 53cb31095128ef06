"""What a model learns: objectives turn a model and a batch into a loss."""

from weft.metrics import higher_is_better
from weft.objectives.base import (
    OBJECTIVES,
    Head,
    Loss,
    Objective,
    ObjectiveConfig,
)
from weft.objectives.batch import Batch
from weft.objectives.causal_lm import CausalLM
from weft.objectives.classify import Classify
from weft.objectives.conditional_masked_lm import ConditionalMaskedLM
from weft.objectives.distill import Distill
from weft.objectives.early_exit import EarlyExits
from weft.objectives.electra import ElectraObjective
from weft.objectives.masked_lm import MaskedLM
from weft.objectives.match import Match
from weft.objectives.modalities.both_strands import BothStrands
from weft.objectives.modalities.masked_units import MaskedUnits
from weft.objectives.mpnet import MPNet
from weft.objectives.permuted_lm import PermutedLM
from weft.objectives.pixel_lm import PixelLM
from weft.objectives.regress import Regress
from weft.objectives.sequence_to_sequence import SequenceToSequence
from weft.objectives.span_corruption import SpanCorruption

__all__ = [
    "OBJECTIVES",
    "Batch",
    "BothStrands",
    "CausalLM",
    "Classify",
    "ConditionalMaskedLM",
    "Distill",
    "EarlyExits",
    "ElectraObjective",
    "Head",
    "Loss",
    "MPNet",
    "MaskedLM",
    "MaskedUnits",
    "Match",
    "Objective",
    "ObjectiveConfig",
    "PermutedLM",
    "PixelLM",
    "Regress",
    "SequenceToSequence",
    "SpanCorruption",
    "higher_is_better",
]
