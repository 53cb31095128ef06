"""Models: stacks of sublayers, encoders, decoders, heads; a mechanism comes in as a config."""

from weft.models.conditional_masked import ConditionalMasked, ConditionalMaskedModule
from weft.models.decoder import Decoder, DecoderModule, DecoderState
from weft.models.depth import DEPTHS, LayerDrop
from weft.models.early_exit import EarlyExit, EarlyExitModule
from weft.models.electra import Electra, ElectraModule
from weft.models.encoder import Encoder, EncoderModule
from weft.models.encoder_decoder import EncoderDecoder, EncoderDecoderModule
from weft.models.evolved import evolved_decoder, evolved_encoder
from weft.models.exit_decoding import leaving_early
from weft.models.exit_policy import EXITS
from weft.models.fill_mask import Filled, fill_mask
from weft.models.funnel import Funnel, FunnelModule
from weft.models.heads import Classifier, ClassifierModule, Matcher, MatcherModule
from weft.models.language_model import LanguageModel, LanguageModelModule
from weft.models.layer_pruning import every_other, prune_layers
from weft.models.mask_predict import mask_predict
from weft.models.order import sandwich
from weft.models.perceiver import Perceiver, PerceiverModule
from weft.models.power_bert import PowerBert, PowerBertModule
from weft.models.presets import PRESETS, preset
from weft.models.pruning import head_importance, keep_heads, prune_heads
from weft.models.registry import MODELS
from weft.models.residual import RESIDUALS, Fixup, ReZero
from weft.models.saving import config_from_dict, config_to_dict, load, save
from weft.models.stack import Stack, StackModule
from weft.models.universal import Universal

__all__ = [
    "DEPTHS",
    "EXITS",
    "MODELS",
    "PRESETS",
    "RESIDUALS",
    "Classifier",
    "ClassifierModule",
    "ConditionalMasked",
    "ConditionalMaskedModule",
    "Decoder",
    "DecoderModule",
    "DecoderState",
    "EarlyExit",
    "EarlyExitModule",
    "Electra",
    "ElectraModule",
    "Encoder",
    "EncoderDecoder",
    "EncoderDecoderModule",
    "EncoderModule",
    "Filled",
    "Fixup",
    "Funnel",
    "FunnelModule",
    "LanguageModel",
    "LanguageModelModule",
    "LayerDrop",
    "Matcher",
    "MatcherModule",
    "Perceiver",
    "PerceiverModule",
    "PowerBert",
    "PowerBertModule",
    "ReZero",
    "Stack",
    "StackModule",
    "Universal",
    "config_from_dict",
    "config_to_dict",
    "every_other",
    "evolved_decoder",
    "evolved_encoder",
    "fill_mask",
    "head_importance",
    "keep_heads",
    "leaving_early",
    "load",
    "mask_predict",
    "preset",
    "prune_heads",
    "prune_layers",
    "sandwich",
    "save",
]
