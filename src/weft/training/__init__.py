"""Training that can be trusted: stopped at any moment, resumed exactly."""

from weft.training.curriculum import LONGFORMER, Phase
from weft.training.data.source import Ordered, Shuffled, Source
from weft.training.evaluate import GroupScore, Score, score
from weft.training.health import NonFinite
from weft.training.loop import train
from weft.training.probe import Probe, linear_probe
from weft.training.progress import Progress, Several
from weft.training.run import Outcome, Run, Stage
from weft.training.settings import TrainingSettings

__all__ = [
    "LONGFORMER",
    "GroupScore",
    "NonFinite",
    "Ordered",
    "Outcome",
    "Phase",
    "Probe",
    "Progress",
    "Run",
    "Score",
    "Several",
    "Shuffled",
    "Source",
    "Stage",
    "TrainingSettings",
    "linear_probe",
    "score",
    "train",
]
