"""From a trunk to an encoder-decoder, and from a batch of pairs to targets."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.models import Decoder, Encoder, EncoderDecoder
from weft.models.trunks.encoder_decoder import decoder_like
from weft.objectives.batch import Batch


def two_sided(
    trunk: Any, rows: int, layers: int | None, mixer: Any, longer: int = 0
) -> EncoderDecoder:
    """The trunk as an encoder, and a decoder like it that reads its output.

    Tables have `rows` more; targets may be `longer` than the trunk's length. A trunk that is an
    encoder-decoder keeps its own decoder.
    """
    if not isinstance(trunk, Encoder | Decoder | EncoderDecoder):
        raise WeftError(f"sequences are written by an encoder and a decoder; got a {trunk.name}")
    if not isinstance(trunk, EncoderDecoder):
        return _paired(trunk, rows, layers, mixer, longer)
    if layers is not None or mixer:
        raise WeftError(
            "the trunk has a decoder of its own, so decoder_layers and decoder_mixer are said "
            f"there; got decoder_layers={layers}, decoder_mixer={str(mixer)!r}"
        )
    encoder = dataclasses.replace(trunk.encoder, embedding=_wider(trunk.encoder, rows))
    decoder = trunk.filled_decoder
    stack = dataclasses.replace(decoder.stack, **_longer(decoder.stack.frame, longer))
    decoder = dataclasses.replace(decoder, embedding=_wider(decoder, rows), stack=stack)
    return dataclasses.replace(trunk, encoder=encoder, decoder=decoder)


def _paired(trunk: Any, rows: int, layers: int | None, mixer: Any, longer: int) -> EncoderDecoder:
    stack, embedding = trunk.stack, _wider(trunk, rows)
    if layers is not None and layers < 1:
        raise WeftError(f"decoder_layers is at least 1; got decoder_layers={layers}")
    changed = _longer(stack.frame, longer)
    if layers is not None:
        if isinstance(stack.mixer, tuple) or isinstance(stack.feedforward, tuple):
            raise WeftError(
                "decoder_layers repeats one layer, and this trunk's layers differ; leave it out, "
                "or give all layers the same mixer and feed-forward"
            )
        changed["order"] = "scf" * layers
    if mixer:
        changed["mixer"] = mixer
    kept = isinstance(trunk, Encoder)  # a funnel stays one
    given = {"embedding": embedding}
    encoder = dataclasses.replace(trunk, **given) if kept else Encoder(**given, stack=stack)
    return EncoderDecoder(
        encoder=encoder,
        decoder=decoder_like(encoder, **changed),
        shares_embedding=embedding.rbf_levels is None,
    )


def _wider(trunk: Any, rows: int) -> Any:
    """The embedding with `rows` more rows."""
    embedding = trunk.embedding
    if embedding.vocab is None:
        raise WeftError(
            "sequences that are written are made of tokens, so the trunk's embedding has a vocab; "
            f"got channels={embedding.channels}"
        )
    return dataclasses.replace(embedding, vocab=embedding.vocab + rows)


def _longer(frame: Any, longer: int) -> dict[str, Any]:
    if frame.length is None:
        return {}
    return {"frame": dataclasses.replace(frame, length=frame.length + longer)}


def second_of(batch: Batch, objective: str) -> tuple[Tensor, Tensor | None]:
    """The targets of a batch: ids (b, m) and where they are real."""
    if batch.second is None:
        raise WeftError(
            f"{objective} writes a second sequence for the first; this batch has one per row: take "
            "a task of pairs, or span_corruption, which makes its own targets"
        )
    if batch.second_marks:
        raise WeftError(
            f"{objective} writes the second sequence token by token, so it takes no marks; got "
            f"second_marks={', '.join(batch.second_marks)}: mark the first alone"
        )
    return batch.second, batch.second_valid


def aligned(ids: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """Ids (b, n) with the real ones first, and where they are: padding may be anywhere."""
    if valid is None:
        return ids, torch.ones_like(ids, dtype=torch.bool)
    order = (~valid).to(torch.uint8).argsort(dim=1, stable=True)  # (b, n)
    return ids.gather(1, order), valid.gather(1, order)
