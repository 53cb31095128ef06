"""Product-key memory: brute force over all keys, torch's batch norm, and an independent package."""

import pytest
import torch

from weft.errors import WeftError
from weft.feedforward import ProductKey
from weft.feedforward.product_key import TokenBatchNorm

DIM = 6


def built(config, seed=0, **given):
    torch.manual_seed(seed)
    return config.build(DIM, **given).double()


def tokens(*shape, seed=1):
    return torch.randn(*shape, DIM, dtype=torch.float64, generator=torch.manual_seed(seed))


def brute_force(module, x):
    """x (t, c): every sum of halves, the best of all, their softmax, their values."""
    config, y = module.config, []
    for token in module.to_query(x):
        total = torch.zeros(DIM, dtype=torch.float64)
        for h, query in enumerate(token.chunk(config.heads)):
            one, two = query.chunk(2)
            scores = [
                (one @ module.keys[0, h, i] + two @ module.keys[1, h, j], i * config.keys + j)
                for i in range(config.keys)
                for j in range(config.keys)
            ]
            best = sorted(scores, key=lambda pair: -pair[0].item())[: config.top]
            weights = torch.stack([score for score, _ in best]).softmax(0)
            numbers = torch.tensor([number for _, number in best])
            total = total + weights @ module.to_out.weight[numbers]
        y.append(total)
    return torch.stack(y)


@pytest.mark.parametrize(("keys", "top"), [(1, 1), (5, 1), (5, 3), (6, 6)])
def test_is_the_best_of_all_keys(keys, top):
    config = ProductKey(keys=keys, top=top, heads=2, key_dim=4, query_norm=False)
    module, x = built(config), tokens(2, 3).requires_grad_()
    expected = brute_force(module, x.flatten(0, 1)).view_as(x)
    y = module(x)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)
    sources, wanted = [x, *module.parameters()], torch.randn_like(y)
    found = torch.autograd.grad(y, sources, wanted)
    for ours, theirs in zip(found, torch.autograd.grad(expected, sources, wanted), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_the_check_sees_a_search_that_is_not_exact():
    config = ProductKey(keys=6, top=3, heads=1, key_dim=4, query_norm=False)
    module, x = built(config), tokens(1, 40)
    expected = brute_force(module, x[0])

    def halves_alone(query):  # the twin: the best of one half with the best of the other, in step
        parts = query.unflatten(1, (1, 2, -1))
        scores = torch.einsum("thsd,shkd->sthk", parts, module.keys)
        (first, second), (i, j) = scores.topk(3, dim=-1)
        return first + second, i * 6 + j

    torch.testing.assert_close(module(x)[0], expected)
    module.best = halves_alone
    assert not torch.allclose(module(x)[0], expected)


def test_equals_the_package():
    package = pytest.importorskip("product_key_memory", reason="parity with its implementation")
    theirs = package.PKM(DIM, heads=3, num_keys=7, topk=4, dim_head=5).double()
    theirs.norm = torch.nn.Identity()
    config = ProductKey(keys=7, top=4, heads=3, key_dim=10, query_norm=False)
    module, x = built(config, bias=False), tokens(2, 5)
    with torch.no_grad():
        module.keys.copy_(theirs.keys.permute(2, 0, 1, 3))  # (heads, keys, halves, d)
        rows = theirs.to_queries.weight.view(2, 3, 5, DIM).transpose(0, 1)
        module.to_query.weight.copy_(rows.reshape(30, DIM))
        module.to_out.weight.copy_(theirs.values.weight)
    torch.testing.assert_close(module(x), theirs(x), rtol=0, atol=1e-12)


def test_the_norm_is_torchs_over_real_tokens():
    ours, theirs = TokenBatchNorm(DIM).double(), torch.nn.BatchNorm1d(DIM).double()
    x = 3 * tokens(20) + 1
    real = torch.rand(20, generator=torch.manual_seed(5)) < 0.6
    for _ in range(3):
        found = ours(x, real)
        torch.testing.assert_close(found[real], theirs(x[real]))
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))
    torch.testing.assert_close(ours.train()(x), theirs.train()(x))


def test_one_token_trains():
    module = built(ProductKey(keys=4, top=2, heads=2, key_dim=4))
    y = module(tokens(1, 1))
    assert y.isfinite().all()
    assert module.norm.running_var.isfinite().all()


def test_padding_changes_nothing_in_training():
    config = ProductKey(keys=5, top=2, heads=2, key_dim=4)
    x = tokens(2, 7)
    valid = torch.ones(2, 7, dtype=torch.bool)
    valid[0, 5:] = valid[1, 0] = False
    alone, padded = built(config), built(config)
    y = padded(x.masked_fill(~valid[..., None], 50.0), valid=valid)
    torch.testing.assert_close(y[valid], alone(x[valid][None])[0])
    torch.testing.assert_close(padded.norm.running_var, alone.norm.running_var)
    assert not torch.allclose(padded(x * 0 + x.roll(1, 1))[valid], y[valid])


def test_dropout_acts_on_what_is_read():
    module = built(ProductKey(keys=5, top=2, heads=2, key_dim=4, query_norm=False), dropout=0.5)
    x = tokens(1, 1)
    torch.manual_seed(3)
    y = module(x)
    torch.manual_seed(3)
    kept = torch.nn.functional.dropout(torch.ones(1, 2, 2, dtype=torch.float64), 0.5)
    scores, numbers = module.best(module.to_query(x[0]))
    expected = torch.einsum(
        "thk,thkc->tc", scores.softmax(-1) * kept, module.to_out.weight[numbers]
    )
    torch.testing.assert_close(y[0], expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keys": 0}, "at least 1; got keys=0"),
        ({"top": 600}, "at most keys=512; got top=600"),
        ({"key_dim": 5}, "key_dim is even; got 5"),
        ({"heads": 0}, "got heads=0"),
    ],
)
def test_refuses(settings, message):
    with pytest.raises(WeftError, match=message):
        ProductKey(**settings)
