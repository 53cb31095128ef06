"""From a trunk to an encoder-decoder, and from a batch of pairs to targets."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.models import Decoder, Encoder, EncoderDecoder
from weft.objectives.batch import Batch


def two_sided(
    trunk: Any, rows: int, layers: int | None, mixer: str, longer: int = 0
) -> EncoderDecoder:
    """The trunk as an encoder, and a decoder like it that reads its output.

    The table, which both share, has `rows` more; targets may be `longer` than the trunk's length.
    """
    stack, embedding = trunk.stack, trunk.embedding
    if embedding.vocab is None:
        raise WeftError(
            "sequences that are written are made of tokens, so the trunk's embedding has a vocab; "
            f"got channels={embedding.channels}"
        )
    if layers is not None and layers < 1:
        raise WeftError(f"decoder_layers is at least 1; got decoder_layers={layers}")
    embedding = dataclasses.replace(embedding, vocab=embedding.vocab + rows)
    frame, changed = stack.frame, {}
    if frame.length is not None:
        changed["frame"] = dataclasses.replace(frame, length=frame.length + longer)
    if layers is not None:
        uniform = not isinstance(stack.mixer, tuple) and not isinstance(stack.feedforward, tuple)
        if not uniform:
            raise WeftError(
                "decoder_layers repeats one layer, and this trunk's layers differ; leave it out, "
                "or give all layers the same mixer and feed-forward"
            )
    order = stack.order.replace("s", "sc") if layers is None else "scf" * layers
    if mixer:
        changed["mixer"] = mixer
    return EncoderDecoder(
        encoder=Encoder(embedding=embedding, stack=stack),
        decoder=Decoder(
            embedding=dataclasses.replace(embedding, registers=0),
            stack=dataclasses.replace(stack, order=order, **changed),
        ),
        shares_embedding=embedding.bumps is None,
    )


def second_of(batch: Batch, objective: str) -> tuple[Tensor, Tensor | None]:
    """The targets of a batch: ids (b, m) and where they are real."""
    if batch.second is None:
        raise WeftError(
            f"{objective} writes a second sequence for the first; this batch has one per row: take "
            "a task of pairs, or span_corruption, which makes its own targets"
        )
    return batch.second, batch.second_valid


def aligned(ids: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """Ids (b, n) with the real ones first, and where they are: padding may stand anywhere."""
    if valid is None:
        return ids, torch.ones_like(ids, dtype=torch.bool)
    order = (~valid).to(torch.uint8).argsort(dim=1, stable=True)  # (b, n)
    return ids.gather(1, order), valid.gather(1, order)
