"""Training that can be trusted: stopped at any moment, resumed exactly."""

from weft.training.curriculum import LONGFORMER, Phase
from weft.training.evaluate import Group, Score, score
from weft.training.health import NonFinite
from weft.training.loop import train
from weft.training.probe import Probe, linear_probe
from weft.training.progress import Progress, Several
from weft.training.run import Outcome, Run, Stage
from weft.training.settings import Settings
from weft.training.source import Ordered, Shuffled, Source

__all__ = [
    "LONGFORMER",
    "Group",
    "NonFinite",
    "Ordered",
    "Outcome",
    "Phase",
    "Probe",
    "Progress",
    "Run",
    "Score",
    "Settings",
    "Several",
    "Shuffled",
    "Source",
    "Stage",
    "linear_probe",
    "score",
    "train",
]
