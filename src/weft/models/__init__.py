"""Models: stacks of sublayers, encoders, decoders, heads; a mechanism comes in as a config."""

from weft.models.decoder import Decoder, DecoderModule, DecoderState
from weft.models.encoder import Encoder, EncoderModule
from weft.models.encoder_decoder import EncoderDecoder, EncoderDecoderModule
from weft.models.funnel import Funnel, FunnelModule
from weft.models.heads import Classifier, ClassifierModule, Matcher, MatcherModule
from weft.models.language_model import LanguageModel, LanguageModelModule
from weft.models.perceiver import Perceiver, PerceiverModule
from weft.models.power_bert import PowerBert, PowerBertModule
from weft.models.registry import MODELS
from weft.models.saving import config_from_dict, config_to_dict, load, save
from weft.models.stack import Stack, StackModule, sandwich

__all__ = [
    "MODELS",
    "Classifier",
    "ClassifierModule",
    "Decoder",
    "DecoderModule",
    "DecoderState",
    "Encoder",
    "EncoderDecoder",
    "EncoderDecoderModule",
    "EncoderModule",
    "Funnel",
    "FunnelModule",
    "LanguageModel",
    "LanguageModelModule",
    "Matcher",
    "MatcherModule",
    "Perceiver",
    "PerceiverModule",
    "PowerBert",
    "PowerBertModule",
    "Stack",
    "StackModule",
    "config_from_dict",
    "config_to_dict",
    "load",
    "sandwich",
    "save",
]
