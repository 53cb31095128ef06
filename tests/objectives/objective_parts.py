"""Small models and batches for the tests of objectives."""

import torch

from weft.layers.embedding import Embedding
from weft.mixers import Frame
from weft.models import Encoder, Stack
from weft.objectives import Batch, Head

VOCAB, CLASSES = 7, 3


def trunk(**embedding) -> Encoder:
    given = {"vocab": VOCAB, "positions": "sinusoidal", **embedding}
    stack = Stack(frame=Frame(dim=8, heads=2, length=20), order="sf", mixer="full")
    return Encoder(embedding=Embedding(**given), stack=stack)


def built(objective):
    """In float64, every parameter stirred."""
    torch.manual_seed(0)
    model = objective.build(trunk(), Head(classes=CLASSES)).build().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def rows() -> Batch:
    torch.manual_seed(1)
    lengths = torch.tensor([6, 2, 9, 1])
    valid = torch.arange(9) < lengths[:, None]
    ids = torch.randint(VOCAB, (4, 9)).masked_fill(~valid, 0)
    return Batch(x=ids, valid=valid, y=torch.tensor([0, 2, 1, 1]))


def pairs() -> Batch:
    one = rows()
    flip = [2, 1, 0, 3]
    return Batch(
        x=one.x, valid=one.valid, second=one.x[flip], second_valid=one.valid[flip], y=one.y % 2
    )
