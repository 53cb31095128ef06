"""Classifiers of DNA that read both strands: prediction does not depend on the one given."""

import dataclasses

import pytest
import torch

from weft.dna.bases import Kmers
from weft.errors import WeftError
from weft.layers.embedding import Embedding
from weft.mixers import Frame
from weft.models import Classifier, Encoder, Stack, StrandClassifier
from weft.objectives import Batch, BothStrands, Head

SIZES = (11, 7, 9)


def config(k=2, vocab=None):
    embedding = Embedding(vocab=vocab or 4**k + 1, positions="sinusoidal")
    stack = Stack(frame=Frame(dim=8, heads=2), order="sf")
    return BothStrands().build(Encoder(embedding=embedding, stack=stack), Head(classes=3))


def sequences(k=2):
    torch.manual_seed(0)
    valid = torch.arange(11) < torch.tensor(SIZES)[:, None]
    ids = torch.randint(4**k + 1, (3, 11)).masked_fill(~valid, 10**6)
    other = torch.zeros(3, 11, dtype=torch.long)
    for row, n in enumerate(SIZES):
        own = Kmers(k=k).reverse_complement(ids[row, :n].numpy()).copy()
        other[row, :n] = torch.from_numpy(own)
    return ids, other, valid


def plain(model):
    """A classifier of one strand with the same weights."""
    made = config()
    names = {field.name: getattr(made, field.name) for field in dataclasses.fields(Classifier)}
    found = Classifier(**names).build().double().eval()
    found.load_state_dict(model.state_dict())
    return found


def test_prediction_is_the_mean_of_both_strands():
    torch.manual_seed(0)
    model = config().build().double().eval()
    ids, other, valid = sequences()
    found = model(ids, valid=valid)
    assert (model(other, valid=valid) - found).abs().max() < 1e-12
    one = plain(model)
    sides = [one(each, valid=valid).softmax(-1) for each in (ids, other)]
    assert (found.exp() - (sides[0] + sides[1]) / 2).abs().max() < 1e-12
    assert (sides[0] - sides[1]).abs().max() > 1e-4
    assert (model(ids[:1]) - found[:1]).abs().max() < 1e-12


def test_training_reads_one_strand_at_random():
    torch.manual_seed(0)
    model = config().build().double()
    ids, other, valid = sequences()
    one = plain(model)
    sides = torch.stack([one(each, valid=valid) for each in (ids, other)])  # (2, 3, classes)
    model.train()
    seen = set()
    for _ in range(20):
        near = (model(ids, valid=valid) - sides).abs().amax(-1) < 1e-12  # (2, 3)
        assert (near.sum(0) == 1).all()
        seen |= {(row, int(near[1, row])) for row in range(3)}
    assert len(seen) == 6
    loss = BothStrands().loss(model, Batch(x=ids, valid=valid, y=torch.tensor([0, 1, 2])), None)
    loss.total.backward()
    assert loss.count == 3


def test_other_tokens_are_refused():
    assert isinstance(config(), StrandClassifier)
    with pytest.raises(WeftError, match=r"a vocab of 4\^k \+ 1"):
        config(vocab=16)
    with pytest.raises(WeftError, match="another place on the other strand"):
        config().build()(torch.zeros(1, 3).long(), marks={"is_global": torch.zeros(1, 3)})
