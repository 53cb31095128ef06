"""Generation: sampling, stopping, text, beams, pictures; needs `start` and `step` of a model."""

from weft.generate.beam import Beams, Hypothesis, beam_search
from weft.generate.decoding import Decoding, Piece
from weft.generate.engine import Engine
from weft.generate.pictures import sample_pictures
from weft.generate.sampling import Sampling
from weft.generate.stopping import Stopping
from weft.generate.text import ByteText, TextCodec, TokenizerText

__all__ = [
    "Beams",
    "ByteText",
    "Decoding",
    "Engine",
    "Hypothesis",
    "Piece",
    "Sampling",
    "Stopping",
    "TextCodec",
    "TokenizerText",
    "beam_search",
    "sample_pictures",
]
