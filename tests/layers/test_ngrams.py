"""Embeddings of n-grams: the same as rows looked up one by one; padding and pieces.

Seen to fail: without the order of the bytes in the hash, with n-grams that reach over padding, and
with tokens that read the one after them.
"""

import pytest
import torch

from weft.errors import WeftError
from weft.layers.embedding import Embedding
from weft.layers.tables.ngrams import NgramTables
from weft.mixers import Frame
from weft.models import Classifier, Decoder, Encoder, Stack

IDS = torch.tensor([[3, 1, 4, 1, 5], [1, 4, 1, 0, 6]])


def build(ngrams=(2, 3), buckets=97, dim=6, **settings):
    torch.manual_seed(0)
    config = Embedding(vocab=7, ngrams=ngrams, ngram_buckets=buckets, **settings)
    return config.build(dim, 16).double()


def bucket(tokens, buckets):
    """The polynomial hash of a list of tokens, None before the first, in Python's integers."""
    hashed = 0
    for token in tokens:
        hashed = (hashed * 1_000_003 + (0 if token is None else token + 1)) % (2**31 - 1)
    return hashed % buckets


def expected(module, row):
    """The definition, token by token."""
    sizes, buckets = module.config.ngrams, module.config.ngram_buckets
    found = []
    for i in range(len(row)):
        total = module.table[row[i]]
        for at, n in enumerate(sizes):
            own = [row[j] if j >= 0 else None for j in range(i - n + 1, i + 1)]
            total = total + module.grams.table[at * buckets + bucket(own, buckets)]
        found.append(total / (1 + len(sizes)) ** 0.5)
    return torch.stack(found)


@pytest.mark.parametrize("ngrams", [(2,), (3,), (2, 5), (16,)])
def test_rows_are_those_of_the_definition(ngrams):
    module = build(ngrams)
    for row, out in zip(IDS.tolist(), module(IDS), strict=True):
        torch.testing.assert_close(out, expected(module, row))


def test_order_and_neighbours_matter_and_the_future_does_not():
    module = NgramTables((2,), 2**14, 4)
    places = module.places(torch.tensor([[1, 2, 1, 2], [2, 1, 2, 2]]), 2)
    assert places[0, 1] == places[0, 3] == places[1, 2]  # "1, 2" wherever it stands
    assert len(set(places.flatten().tolist())) == 5
    assert torch.equal(module.places(torch.tensor([[1, 2, 1, 0]]), 2)[0, :3], places[0, :3])


def test_padding_is_passed_over():
    module = build()
    padded = torch.tensor([[-1, 3, -1, 1, 4, 99, 1, 5]])
    valid = torch.tensor([[0, 1, 0, 1, 1, 0, 1, 1]], dtype=torch.bool)
    torch.testing.assert_close(module(padded, valid=valid)[valid], module(IDS[:1])[0])


def test_a_model_reads_the_same_with_padding_anywhere():
    stack = Stack(frame=Frame(dim=8, heads=1), mixer="full", order="sf")
    trunk = Encoder(embedding=Embedding(vocab=7, ngrams=(3,), registers=1), stack=stack)
    model = Classifier(trunk=trunk, classes=2).build().double().eval()
    padded = torch.tensor([[0, 3, 0, 1, 4, 0, 1, 5]])
    valid = torch.tensor([[0, 1, 0, 1, 1, 0, 1, 1]], dtype=torch.bool)
    torch.testing.assert_close(model(padded, valid=valid), model(IDS[:1]))
    (grad,) = torch.autograd.grad(model(IDS).sum(), model.trunk.embedding.grams.table)
    assert 0 < int(grad.any(1).sum()) <= IDS.numel()


def test_rows_have_unit_variance():
    module = build((2, 3), 4096, 256)
    ids = torch.randint(7, (4, 500))
    assert module(ids).std().item() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ngrams": (1,)}, "sizes from 2 to 16"),
        ({"ngrams": (3, 3)}, "different sizes"),
        ({"ngrams": (17,)}, "sizes from 2 to 16"),
        ({"ngrams": (3,), "ngram_buckets": 0}, "ngram_buckets is at least 1"),
        ({"ngrams": (3,), "factor": 2}, "a plain table"),
        ({"ngrams": (3,), "cutoffs": (2,)}, "a plain table"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(WeftError, match=message):
        Embedding(vocab=7, **settings)


def test_what_meets_a_sequence_in_pieces_refuses():
    with pytest.raises(WeftError, match="a piece embeds tokens without those before"):
        build()(IDS, start=2)
    stack = Stack(frame=Frame(dim=8, heads=1), mixer="full", order="sf")
    with pytest.raises(WeftError, match="a decoder embeds tokens without those before"):
        Decoder(embedding=Embedding(vocab=7, ngrams=(3,)), stack=stack)
