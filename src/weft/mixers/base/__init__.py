"""What mechanisms share: the contract, the frame around it, and the kinds that several build on."""

from weft.layers.penalty import penalties
from weft.layers.state import State
from weft.mixers.base.contract import MIXERS, AttentionMixer, Mixer, MixerConfig
from weft.mixers.base.frame import Frame, Traits

__all__ = [
    "MIXERS",
    "AttentionMixer",
    "Frame",
    "Mixer",
    "MixerConfig",
    "State",
    "Traits",
    "penalties",
]
