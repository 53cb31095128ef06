"""Perceiver IO: its decoder against the Transformers library, padding, queries, saving."""

import pytest
import torch
from model_parts import VOCAB, built, embedding, ids, normal

from mixers.test_perceiver import copy_block, their_layer
from weft.errors import WeftError
from weft.layers.embedding import Embedding
from weft.layers.positions import Rope
from weft.mixers import Frame
from weft.models import PerceiverIO, load, save

FRAME = Frame(dim=24, heads=4)


def model(**settings):
    return PerceiverIO(
        **{"embedding": embedding(), "frame": FRAME, "latents": 5, "layers": 1, **settings}
    )


@pytest.mark.parametrize("residual", [True, False])
def test_the_decoder_equals_transformers(residual):
    ours = built(model(expansion=2, query_residual=residual))
    theirs = their_layer(True, residual)
    copy_block(ours.decoder, theirs)
    queries, x = normal(2, 6, 24), ids(2, 13)
    expected = theirs(queries, inputs=ours.encode(x))[0]
    torch.testing.assert_close(ours(x, queries=queries), expected, rtol=0, atol=1e-6)


def test_padding_changes_nothing():
    ours, x = built(model(outputs=3)), ids(3, 21)
    valid = torch.ones(3, 21, dtype=torch.bool)
    valid[1, :9] = False
    valid[2, [2, 3, 11]] = False
    y = ours(x, valid=valid)
    assert y.shape == (3, 3, 24)
    for row in range(3):
        alone = ours(x[row][valid[row]][None])[0]
        torch.testing.assert_close(y[row], alone, rtol=0, atol=1e-10)


def test_queries_do_not_meet():
    """Each output is a function of its own query and the latents."""
    ours, x, queries = built(model()), ids(2, 13), normal(2, 6, 24)
    together = ours(x, queries=queries)
    for o in range(6):
        alone = ours(x, queries=queries[:, o : o + 1])
        torch.testing.assert_close(alone, together[:, o : o + 1], rtol=0, atol=1e-10)


def test_every_parameter_learns():
    ours = built(model(outputs=2, repeats=2))
    ours(ids(2, 9)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in ours.parameters())


def test_it_is_saved(tmp_path):
    ours = built(model(outputs=2), torch.float32).eval()
    again = load(save(ours, tmp_path / "model"))
    assert again.config == ours.config
    assert torch.equal(again(ids(2, 9)), ours(ids(2, 9)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: model(frame=Frame(dim=24, heads=4, positions=Rope())), "latents have no position"),
        (lambda: model(embedding=Embedding(vocab=VOCAB, registers=1)), "latents are its registers"),
        (lambda: model(outputs=0), "outputs counts learned queries"),
        (lambda: model(latents=0).build(), "latents, repeats and expansion are at least 1"),
        (
            lambda: model().build().decode(torch.zeros(1, 5, 24)),
            "outputs are decoded by queries",
        ),
        (
            lambda: model(outputs=1).build()(ids(1, 3), queries=torch.zeros(1, 1, 24)),
            "outputs are decoded by queries",
        ),
        (
            lambda: model().build()(ids(1, 3), queries=torch.zeros(1, 1, 23)),
            "queries are .batch, outputs, width. = .1, any, 24.; got .1, 1, 23.",
        ),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(WeftError, match=message):
        make()
