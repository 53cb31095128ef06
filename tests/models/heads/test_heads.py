import pytest
import torch
from model_parts import DIM, built, decoder, encoder, ids, normal
from torch import nn

from weft.errors import WeftError
from weft.mixers import MIXERS
from weft.models import Classifier, Matcher
from weft.models.heads.document import pooled

FULL = MIXERS["full"]
VALID = torch.tensor(
    [[1, 1, 1, 1, 1], [0, 1, 0, 1, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]], dtype=torch.bool
)


@pytest.mark.parametrize("pool", ["mean", "max", "sqrtn", "first", "last"])
def test_pooling_reads_real_tokens_one_by_one(pool):
    tokens = normal(4, 5, 3) - 3
    for row in range(4):
        real = [tokens[row, n] for n in range(5) if VALID[row, n]]
        if not real:
            expected = torch.zeros(3, dtype=torch.float64)
        elif pool in ("first", "last"):
            expected = real[0 if pool == "first" else -1]
        elif pool == "mean":
            expected = sum(real) / len(real)
        elif pool == "sqrtn":
            expected = sum(real) / len(real) ** 0.5
        else:
            expected = torch.stack([max(column) for column in zip(*real, strict=True)])
        torch.testing.assert_close(pooled(tokens, VALID, pool)[row], expected)
    torch.testing.assert_close(pooled(tokens, None, pool)[0], pooled(tokens, VALID, pool)[0])


def test_a_long_mean_in_half_precision():
    tokens = torch.full((1, 5000, 2), 100.0, dtype=torch.float16)
    assert pooled(tokens, None, "mean").tolist() == [[100.0, 100.0]]


@pytest.mark.parametrize("pool", ["mean", "max", "sqrtn", "first", "last"])
@pytest.mark.parametrize("hidden", [None, 7])
def test_classifier_is_pool_then_matrices(pool, hidden):
    model = built(Classifier(trunk=encoder(), classes=3, pool=pool, hidden=hidden))
    x = ids(4, 5)
    y = pooled(model.trunk(x, valid=VALID), VALID, pool)
    matrices = [layer for layer in model.head if isinstance(layer, nn.Linear)]
    assert len(matrices) == (1 if hidden is None else 2)
    y = y @ matrices[0].weight.T + matrices[0].bias
    if hidden is not None:
        y = y * 0.5 * (1 + torch.erf(y / 2**0.5))
        y = y @ matrices[1].weight.T + matrices[1].bias
    torch.testing.assert_close(model(x, valid=VALID), y)
    assert y.shape == (4, 3)


def test_attention_pooling_is_four_weighted_means():
    model = built(Classifier(trunk=encoder(), classes=3, pool="attention"))
    x = ids(4, 5)
    tokens = model.trunk(x, valid=VALID)
    for row in range(4):
        real = [n for n in range(5) if VALID[row, n]]
        means = []
        for query in model.pool.queries:
            weights = [(tokens[row, n] @ query * DIM**-0.5).exp() for n in real]
            total = [w / sum(weights) * tokens[row, n] for w, n in zip(weights, real, strict=True)]
            means.append(sum(total) if real else torch.zeros(DIM, dtype=torch.float64))
        torch.testing.assert_close(model(x, valid=VALID)[row], model.head(torch.cat(means)))
    assert torch.equal(model(x[:1]), model(x[:1], valid=VALID[:1]))


def test_first_is_the_register_where_there_is_one():
    config = Classifier(trunk=encoder(embed={"registers": 2}), classes=3, pool="first")
    model, x = built(config), ids(4, 5)
    registers, _ = model.trunk.read(x, valid=VALID)
    torch.testing.assert_close(model(x, valid=VALID), model.head(registers[:, 0]))


def test_classes_of_a_padded_batch_are_those_of_each_row():
    model = built(Classifier(trunk=encoder(mixer=FULL()), classes=3))
    x = ids(4, 5)
    for row in range(3):
        alone = model(x[row][VALID[row]][None])[0]
        torch.testing.assert_close(model(x, valid=VALID)[row], alone)


def test_classifier_on_a_decoder():
    model = built(Classifier(trunk=decoder(mixer=FULL()), classes=3, pool="last"))
    x = ids(2, 5)
    torch.testing.assert_close(model(x), model.head(model.trunk(x)[:, -1]))


def test_matcher_is_its_equation():
    model = built(Matcher(trunk=encoder(mixer=FULL()), classes=2, hidden=9))
    first, second = ids(4, 5), ids(4, 3, seed=1)
    one = torch.stack(
        [
            row[keep].mean(0)
            for row, keep in zip(model.trunk(first, valid=VALID), VALID, strict=True)
        ]
    )
    one[3] = 0
    two = model.trunk(second).mean(1)
    mixed = torch.cat((one, two, one * two, one - two), dim=1)
    y = mixed @ model.head[0].weight.T + model.head[0].bias
    y = y * 0.5 * (1 + torch.erf(y / 2**0.5))
    y = y @ model.head[2].weight.T + model.head[2].bias
    got = model(first, second, first_valid=VALID)
    torch.testing.assert_close(got, y)
    assert got.shape == (4, 2)


def test_matcher_hides_padding_of_the_second_document():
    model = built(Matcher(trunk=encoder(mixer=FULL())))
    first, second = ids(4, 5), ids(4, 5, seed=1)
    got = model(first, second, second_valid=VALID)
    alone = model(first[1:2], second[1:2, VALID[1]])
    torch.testing.assert_close(got[1:2], alone)
    assert model.head[0].in_features == 4 * DIM
    assert model.head[0].out_features == DIM


def test_heads_start_small():
    head = Classifier(trunk=encoder(), classes=1000, hidden=200).build().head
    assert head[2].weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert head[2].bias.abs().max() == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Classifier(trunk=encoder(), classes=0), "at least 1; got 0"),
        (lambda: Classifier(trunk=encoder(), classes=2, pool="sum"), "pool is one of .* got 'sum'"),
        (lambda: Classifier(trunk=5, classes=2), "an Encoder .* or a Decoder .*; got 5"),
        (lambda: Classifier(trunk=decoder(), classes=2, pool="first"), "use pool='last'"),
        (lambda: Matcher(trunk=decoder(order="sc", cross=FULL())), "no context .* got order 'sc'"),
        (lambda: built(Matcher(trunk=encoder()))(ids(2, 3), ids(3, 3)), "in pairs; got 2 and 3"),
        (lambda: built(Matcher(trunk=encoder()))(ids(2, 0), ids(2, 3)), "at least one token"),
    ],
)
def test_refuses(make, message):
    with pytest.raises(WeftError, match=message):
        make()
