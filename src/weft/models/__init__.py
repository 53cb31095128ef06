"""Models: stacks of sublayers, encoders, decoders, heads; a mechanism comes in as a config."""

from weft.models.exits.decoding import leaving_early
from weft.models.exits.early_exit import EarlyExit, EarlyExitModule
from weft.models.exits.policy import EXITS
from weft.models.heads.conditional_masked import ConditionalMasked, ConditionalMaskedModule
from weft.models.heads.document import Classifier, ClassifierModule, Matcher, MatcherModule
from weft.models.heads.electra import Electra, ElectraModule
from weft.models.heads.fill_mask import Filled, fill_mask
from weft.models.heads.language_model import LanguageModel, LanguageModelModule
from weft.models.heads.mask_predict import mask_predict
from weft.models.heads.strands import StrandClassifier, StrandClassifierModule
from weft.models.heads.unit_predictor import UnitPredictor, UnitPredictorModule
from weft.models.presets import PRESETS, preset
from weft.models.pruning.heads import head_importance, keep_heads, prune_heads
from weft.models.pruning.layers import every_other, prune_layers
from weft.models.registry import MODELS
from weft.models.saving import config_from_dict, config_to_dict, load, save
from weft.models.stack.depth import DEPTHS, LayerDrop
from weft.models.stack.order import sandwich
from weft.models.stack.residual import RESIDUALS, Fixup, ReZero
from weft.models.stack.stack import Stack, StackModule
from weft.models.stack.universal import Universal
from weft.models.trunks.decoder import Decoder, DecoderModule, DecoderState
from weft.models.trunks.encoder import Encoder, EncoderModule
from weft.models.trunks.encoder_decoder import EncoderDecoder, EncoderDecoderModule
from weft.models.trunks.evolved import evolved_decoder, evolved_encoder
from weft.models.trunks.funnel import Funnel, FunnelModule
from weft.models.trunks.multimodal_perceiver import (
    MultimodalPerceiver,
    MultimodalPerceiverModule,
)
from weft.models.trunks.perceiver_io import PerceiverIO, PerceiverIOModule
from weft.models.trunks.power_bert import PowerBert, PowerBertModule
from weft.models.trunks.swin_transformer import SwinTransformer, SwinTransformerModule
from weft.models.trunks.waveform import Waveform, WaveformModule

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
    "MultimodalPerceiver",
    "MultimodalPerceiverModule",
    "PerceiverIO",
    "PerceiverIOModule",
    "PowerBert",
    "PowerBertModule",
    "ReZero",
    "Stack",
    "StackModule",
    "StrandClassifier",
    "StrandClassifierModule",
    "SwinTransformer",
    "SwinTransformerModule",
    "UnitPredictor",
    "UnitPredictorModule",
    "Universal",
    "Waveform",
    "WaveformModule",
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
