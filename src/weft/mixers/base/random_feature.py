"""Mixers whose features are random directions, redrawn during training."""

from __future__ import annotations

from weft.layers.random_features import RandomDirections
from weft.mixers.base import AttentionMixer


class RandomFeatureMixer(AttentionMixer):
    """Redraws `directions` every `config.redraw_every` steps; 0: never."""

    directions: RandomDirections

    def redraw(self, draw: int) -> None:
        """Other random directions: those of this number, 0 for the first."""
        self.directions.redraw(draw)

    def advance(self, step: int) -> None:
        """Redraw every `redraw_every` steps."""
        every = self.config.redraw_every
        if every and step % every == 0:
            self.redraw(step // every)
