"""Small models for the tests of native decoding."""

import torch

from weft.feedforward import Dense, Sparse
from weft.layers.embedding import Embedding
from weft.layers.norm import Norm
from weft.layers.outputs import Linear
from weft.mixers import Frame
from weft.models import Decoder, LanguageModel, Stack

VOCAB = 48


def small_model(
    *,
    mixer="full",
    feedforward=None,
    norm=None,
    added="none",
    tied=True,
    output=None,
    recompute="nothing",
    order="sfsf",
    **frame,
):
    """A model of 2 layers, width 32; biases and gains are random, so that each is felt."""
    settings = {"dim": 32, "heads": 4, "length": 2000, **frame}
    stack = Stack(
        frame=Frame(**settings),
        order=order,
        mixer=mixer,
        feedforward=feedforward or Dense(expansion=2),
        norm=norm or Norm(),
        recompute=recompute,
    )
    trunk = Decoder(embedding=Embedding(vocab=VOCAB, positions=added), stack=stack)
    model = LanguageModel(trunk=trunk, tied=tied, output=output or Linear()).build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def sparse_model(**settings):
    """Sparse everywhere, as Terraformer."""
    chosen = {"feedforward": Sparse(block=8), "projection": "multiplicative_conv(modules=4)"}
    return small_model(**{**chosen, **settings})
