"""The model of an experiment: a trunk and a head, of which the task decides what is left open.

A settings file nests the real configs: [model.trunk.stack.frame] and so on, or shorter, since every
name that occurs once may stand at the top of [model]. The defaults are those of a small encoder.
Everything but the mechanism is the same for all contenders of a comparison.
"""

from __future__ import annotations

import dataclasses
from dataclasses import field
from typing import Any

from weft.config import config
from weft.errors import WeftError
from weft.layers.embedding import Embedding
from weft.mixers import Frame
from weft.models import (
    Decoder,
    Encoder,
    EncoderDecoder,
    MultimodalPerceiver,
    PerceiverIO,
    Stack,
    SwinTransformer,
)
from weft.models.registry import ModelConfig
from weft.models.stack.order import split
from weft.objectives import Head

TRUNKS = (Encoder, Decoder, EncoderDecoder, PerceiverIO, SwinTransformer)


def small_encoder() -> Encoder:
    """What is trained where nothing else is said."""
    stack = Stack(frame=Frame(dim=128, heads=4), order="sf" * 4)
    return Encoder(embedding=Embedding(positions="sinusoidal"), stack=stack)


@config
class Model:
    """A trunk (encoder, decoder, funnel, perceiver, swin_transformer, ...) and its head."""

    trunk: ModelConfig = field(default_factory=small_encoder)
    head: Head = field(default_factory=Head)

    def __post_init__(self) -> None:
        if not isinstance(self.trunk, TRUNKS):
            names = "encoder, decoder, funnel, power_bert, perceiver, multimodal_perceiver, "
            names += "swin_transformer or encoder_decoder"
            raise WeftError(f"trunk is one of {names}; got {self.trunk.name}")

    @property
    def part(self) -> Any:
        """The part of the trunk that reads the input: the encoder of two."""
        return self.trunk.encoder if isinstance(self.trunk, EncoderDecoder) else self.trunk

    @property
    def mixer(self) -> str:
        """The mechanisms as a spec: one, or several separated by commas."""
        if hasattr(self.part, "mechanism"):
            return self.part.mechanism
        mixer = self.part.stack.mixer
        if not isinstance(mixer, tuple):
            return str(mixer)
        turns = range(1, len(mixer) + 1)
        turn = next(n for n in turns if mixer == mixer[:n] * (len(mixer) // n))
        return ", ".join(map(str, mixer[:turn]))

    def sizes(self) -> dict[str, Any]:
        """Layers, width, heads and positions, for a row of results."""
        part = self.part
        if hasattr(part, "facts"):
            return part.facts()
        frame = part.stack.frame
        inside = frame.positions
        return {
            "layers": len(split(part.stack.order)),
            "dim": frame.dim,
            "heads": frame.heads,
            "positions": part.embedding.positions if inside is None else str(inside),
        }

    def bound(self, task: Any) -> tuple[Any, Head]:
        """Trunk and head for a task: its vocabulary, longest sequence and classes."""
        trunk = self.trunk
        if task.kind == "language" and type(trunk) is Encoder:
            trunk = Decoder(embedding=trunk.embedding, stack=trunk.stack)
        classes = _at_least("head.classes", self.head.classes, task.classes or 2)
        return _bound(trunk, task), dataclasses.replace(self.head, classes=classes)


def _bound(trunk: Any, task: Any) -> Any:
    if isinstance(trunk, EncoderDecoder):
        encoder, decoder = _bound(trunk.encoder, task), _bound(trunk.decoder, task)
        return dataclasses.replace(trunk, encoder=encoder, decoder=decoder)
    inputs = getattr(task, "inputs", None)  # of tasks whose rows are no ids
    if inputs is None:
        inputs = {"vocab": _at_least("embedding.vocab", trunk.embedding.vocab, task.vocab)}
    if "modalities" in inputs and not isinstance(trunk, MultimodalPerceiver):
        raise WeftError(
            f"a task of several modalities is read by the trunk multimodal_perceiver, not by "
            f"{trunk.name}: [model.trunk] name = 'multimodal_perceiver'"
        )
    if isinstance(trunk, SwinTransformer):
        return trunk.bound(inputs, task.length)
    frame = trunk.frame if isinstance(trunk, PerceiverIO) else trunk.stack.frame
    length = _at_least("frame.length", frame.length, task.length)
    if isinstance(trunk, PerceiverIO):
        return trunk.bound(inputs, length)
    given: dict[str, Any] = {"embedding": dataclasses.replace(trunk.embedding, **inputs)}
    frame = dataclasses.replace(frame, length=length)
    return dataclasses.replace(trunk, **given, stack=dataclasses.replace(trunk.stack, frame=frame))


def _at_least(name: str, given: int | None, needed: int) -> int:
    if given is not None and given < needed:
        raise WeftError(f"the task needs {name} of at least {needed}; got {given}: leave it out")
    return given or needed
