"""Token mixers, one file per mechanism; importing this package registers all of them."""

from weft.mixers.base import MIXERS, AttentionMixer, Frame, Mixer, State, Traits

__all__ = ["MIXERS", "AttentionMixer", "Frame", "Mixer", "State", "Traits"]
