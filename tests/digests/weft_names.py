"""All that the digests use of weft: modules that move are followed here, and nowhere else."""
# ruff: noqa: F401

from weft import Alibi, Rope, T5Bias, WeftError, attend
from weft.arena.experiment.runs import run_of
from weft.arena.experiment.settings import experiment
from weft.feedforward import FEEDFORWARDS
from weft.layers.embedding import Embedding
from weft.layers.norm import Norm
from weft.layers.outputs import OUTPUTS
from weft.layers.penalty import penalties
from weft.mixers import MIXERS, Frame
from weft.models import (
    DEPTHS,
    MODELS,
    RESIDUALS,
    Classifier,
    ConditionalMasked,
    Decoder,
    EarlyExit,
    Electra,
    Encoder,
    EncoderDecoder,
    Funnel,
    LanguageModel,
    Matcher,
    PowerBert,
    Stack,
    evolved_decoder,
    evolved_encoder,
    sandwich,
)
from weft.models import (
    PerceiverIO as Perceiver,
)
from weft.objectives import OBJECTIVES, Batch, Head
from weft.patterns import pattern
from weft.testing import small, variants
from weft.training import Progress, train
