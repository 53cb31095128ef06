"""Bytes kept for backward, counted without numbers, against those that a real run keeps."""

import pytest
import torch

from weft.arena.analysis.activations import activation_bytes
from weft.layers.embedding import Embedding
from weft.mixers import Frame
from weft.models import Classifier, Decoder, Encoder, LanguageModel, Stack
from weft.objectives.batch import ModelInputs
from weft.objectives.causal_lm import next_token_loss

N, ROWS = 64, 3


def model(mixer="full", feedforward="dense", causal=False, **stack):
    frame = Frame(dim=16, heads=2, length=N)
    parts = {"mixer": mixer, "feedforward": feedforward, "order": "sfsf", **stack}
    given = {"embedding": Embedding(vocab=11), "stack": Stack(frame=frame, **parts)}
    if causal:
        return LanguageModel(trunk=Decoder(**given))
    return Classifier(trunk=Encoder(**given), classes=3)


def kept(config):
    """Of a real run, in float32."""
    built, ids, held = config.build().train(), torch.zeros(ROWS, N, dtype=torch.long), {}
    weights = {p.untyped_storage()._cdata for p in built.parameters()}

    def pack(x):
        held[x.untyped_storage()._cdata] = x
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        if isinstance(config, LanguageModel):
            result = next_token_loss(built, ModelInputs(ids))
        else:
            result = built(ids)
    assert result is not None
    return sum(x.untyped_storage().nbytes() for at, x in held.items() if at not in weights)


@pytest.mark.parametrize(
    "config",
    [
        model(),
        model(causal=True),
        model("linear_transformer"),
        model("linear_transformer", causal=True),
        model("linformer(rank=16)"),
        model("entmax"),
        model("fnet", "chunked"),
        model(feedforward="gshard(experts=4)"),
        model(feedforward="moe(experts=4)"),
        model(recompute="checkpoint"),
    ],
    ids=str,
)
def test_the_count_is_what_a_run_keeps(config):
    real = kept(config)
    assert abs(activation_bytes(config, N, ROWS) - real) <= 0.01 * real


def test_tp_halves_what_is_inside_layers_and_half_precision_all():
    whole = activation_bytes(model(), N, ROWS)
    assert 0.5 * whole < activation_bytes(model(), N, ROWS, tp=2) < 0.8 * whole
    weights = sum(p.numel() for p in model().build().parameters())
    half = activation_bytes(model(), N, ROWS, precision="bfloat16") - 2 * weights
    assert 0.5 * whole <= half < 0.55 * whole
