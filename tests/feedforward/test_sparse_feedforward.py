"""The sparse feed-forward against its equation, unit by unit, and in its limits."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.config import write
from weft.errors import WeftError
from weft.feedforward import FEEDFORWARDS, Sparse


def made(dim=8, dtype=torch.float64, seed=0, bias=True, dropout=0.0, **settings):
    torch.manual_seed(seed)
    module = Sparse(**{"block": 4, "hidden": 24, "rank": 3, **settings}).build(dim, dropout, bias)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module.to(dtype).eval()


def tokens(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def logits_of(module, x):
    """The controller's logits of one token (c,): a list of blocks, each a list of numbers."""
    low = module.to_low.weight @ x
    flat = module.to_logits.weight @ low + module.to_logits.bias
    return flat.reshape(-1, module.config.block)


@torch.no_grad()
def plain(module, x):
    """One token (c,), block by block and unit by unit."""
    y = module.to_out.bias.clone()
    for number, logits in enumerate(logits_of(module, x).tolist()):
        unit = number * module.config.block + logits.index(max(logits))
        active = max(0.0, float(module.to_hidden.weight[unit] @ x))
        y = y + active * module.to_out.weight[unit]
    return y


def plain_tokens(module, x):
    rows = [plain(module, token) for token in x.flatten(0, -2)]
    return torch.stack(rows).view_as(x)


@pytest.mark.parametrize("shape", [(1, 1), (2, 7)], ids=["one token", "many"])
def test_evaluation_is_its_equation(shape):
    module, x = made(), tokens(*shape, 8)
    torch.testing.assert_close(module(x), plain_tokens(module, x))


def test_the_equation_bites_on_another_order_of_units():
    module, x = made(), tokens(2, 7, 8)
    expected = plain_tokens(module, x)
    with torch.no_grad():  # W2 with block and unit exchanged, the trap of two layouts
        swapped = module.to_out.weight.view(6, 4, 8).transpose(0, 1).reshape(24, 8)
        module.to_out.weight.copy_(swapped)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(module(x), expected)


@settings(deadline=None, max_examples=40)
@given(
    block=st.integers(1, 9),
    blocks=st.integers(1, 6),
    dim=st.integers(1, 9),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 5)),
    bias=st.booleans(),
)
def test_gathered_is_masked(block, blocks, dim, shape, bias):
    module = made(dim, block=block, hidden=block * blocks, bias=bias)
    x = tokens(*shape, dim)
    chosen = module.logits(x).argmax(-1)
    gathered, masked = module.gathered(x, chosen), module.masked(x, chosen)
    torch.testing.assert_close(gathered, masked)
    torch.testing.assert_close(module(x), masked)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_both_forms_keep_the_precision(dtype):
    module, x = made(dtype=dtype), tokens(3, 5, 8).to(dtype)
    chosen = module.logits(x).argmax(-1)
    gathered, masked = module.gathered(x, chosen), module.masked(x, chosen)
    assert gathered.dtype == masked.dtype == dtype
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(gathered, masked, rtol=4 * unit, atol=16 * unit)


def test_few_tokens_gather_and_many_do_not(monkeypatch):
    module = made(block=8, hidden=24)
    monkeypatch.setattr(module, "gathered", lambda x, chosen: "gathered")
    monkeypatch.setattr(module, "masked", lambda x, chosen: "masked")
    assert module(tokens(2, 1, 8)) == "gathered"
    assert module(tokens(1, 3, 8)) == "masked"


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_blocks_of_one_are_the_relu_feed_forward(training):
    module, x = made(block=1, hidden=10).train(training), tokens(2, 3, 8)
    hidden = F.relu(F.linear(x, module.to_hidden.weight))
    expected = F.linear(hidden, module.to_out.weight.T, module.to_out.bias)
    assert torch.equal(module(x), expected)


@pytest.mark.parametrize("mode", ["evaluation", "hard training"])
def test_at_most_one_unit_of_a_block_is_not_zero(mode):
    module, x = made(hard=1.0).train(mode != "evaluation"), tokens(2, 9, 8)
    seen = []
    module.to_out.register_forward_pre_hook(lambda m, given: seen.append(given[0]))
    module(x)
    alive = (seen[0] != 0).unflatten(-1, (6, 4)).sum(-1)
    assert alive.max() == 1
    assert alive.sum() > 0


def test_soft_training_weighs_units_by_probability():
    module, x = made(hard=0.0).train(), tokens(2, 3, 8)
    for token, y in zip(x.flatten(0, 1), module(x).flatten(0, 1), strict=True):
        p = logits_of(module, token).softmax(-1).flatten()
        active = torch.relu(module.to_hidden.weight @ token * p)
        torch.testing.assert_close(y, active @ module.to_out.weight + module.to_out.bias)


def test_hard_training_without_noise_is_evaluation():
    module, x = made(hard=1.0, temperature=0.0), tokens(2, 9, 8)
    assert torch.equal(module.train()(x), module.eval()(x))


def test_the_gradient_goes_straight_through():
    """With h = w·x of the chosen unit, dy/d logit_j = relu'(h) h p_chosen (1[j chosen] − p_j)."""
    module, x = made(hard=1.0, temperature=0.0).train(), tokens(1, 1, 8)
    weights = tokens(8, seed=4)
    (found,) = torch.autograd.grad(module(x) @ weights, module.to_logits.bias)
    expected = torch.zeros(6, 4, dtype=torch.float64)
    for number, logits in enumerate(logits_of(module, x[0, 0])):
        best, p = int(logits.argmax()), logits.softmax(-1)
        unit = number * 4 + best
        h = torch.relu(module.to_hidden.weight[unit] @ x[0, 0])
        value = h * (module.to_out.weight[unit] @ weights)
        expected[number] = value * p[best] * (F.one_hot(torch.tensor(best), 4) - p)
    assert found.abs().max() > 0
    torch.testing.assert_close(found, expected.flatten())


def test_noise_draws_units_as_often_as_their_probability():
    """Gumbel-max: at temperature 1 the argmax of log p + noise is a draw from p."""
    module, x = made(hard=1.0, temperature=1.0).train(), tokens(1, 1, 8).expand(1, 4000, 8)
    seen = []
    module.choice.register_forward_hook(lambda m, given, chosen: seen.append(chosen))
    torch.manual_seed(0)
    module(x)
    share = F.one_hot(seen[0][0], 4).double().mean(0)  # (blocks, block)
    p = logits_of(module, x[0, 0]).softmax(-1)
    spread = (p * (1 - p) / 4000).sqrt()
    assert ((share - p).abs() < 5 * spread + 1e-9).all()
    cold = p.pow(10) / p.pow(10).sum(-1, keepdim=True)  # what dividing logits by 0.1 would draw
    assert not ((share - cold).abs() < 5 * spread + 1e-9).all()


def test_one_coin_is_thrown_per_call():
    module, x = made(hard=0.3, temperature=0.0).train(), tokens(2, 5, 8)
    hard, soft = module.eval()(x), None
    module.train()
    heads = 0
    torch.manual_seed(3)
    for _ in range(400):
        y = module(x)
        if torch.equal(y, hard):
            heads += 1
        else:
            soft = y if soft is None else soft
            assert torch.equal(y, soft)
    assert abs(heads - 120) < 5 * (400 * 0.3 * 0.7) ** 0.5


def test_dropout_acts_on_hidden_units():
    module, x = made(hard=0.0, dropout=0.5).train(), tokens(1, 1, 8)
    seen = []
    module.to_out.register_forward_pre_hook(lambda m, given: seen.append(given[0]))
    module(x)
    p = logits_of(module, x[0, 0]).softmax(-1).flatten()
    active = torch.relu(module.to_hidden.weight @ x[0, 0] * p)
    kept = seen[0][0, 0] != 0
    torch.testing.assert_close(seen[0][0, 0][kept], 2 * active[kept])
    assert 0 < kept.sum() < (active > 0).sum()


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("length", [1, 9])
def test_nothing_waits_for_the_host(training, length):
    """Tensors without values: a read by the host raises."""
    module = made().train(training)
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.empty(2, length, 8, dtype=torch.float64)
        assert module(x).shape == x.shape
        with pytest.raises(Exception, match="_local_scalar"):
            bool(module(x).sum() > 0)


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_compiles_as_one_graph(training):
    module = made(hard=1.0, temperature=0.0).train(training)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for x in (tokens(1, 1, 8), tokens(2, 5, 8)):
        torch.testing.assert_close(compiled(x), module(x))


def test_autocast_runs_both_forms():
    module = made(dtype=torch.float32)
    for shape in ((1, 1), (2, 9)):
        x = tokens(*shape, 8).float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = module(x)
        torch.testing.assert_close(y.float(), module(x), rtol=0.1, atol=0.1)
    module.train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        module(x).float().sum().backward()
    assert all(p.grad.isfinite().all() for p in module.parameters())


def test_starts_as_the_paper_says():
    torch.manual_seed(0)
    module = Sparse(block=16, hidden=1024).build(128)
    bound = (6 / (128 + 1024)) ** 0.5
    for weight in (module.to_hidden.weight, module.to_out.weight):
        assert weight.shape == (1024, 128)
        assert 0.99 * bound < weight.abs().max() <= bound
    assert module.to_low.weight.shape == (16, 128)
    assert module.to_logits.bias.abs().max() < 1e-5
    torch.manual_seed(0)
    larger = Sparse(block=16, hidden=1024, rescale=True).build(128)
    torch.testing.assert_close(larger.to_out.weight, 4 * module.to_out.weight)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"block": 0}, "block"),
        ({"hidden": 100, "block": 64}, "hidden=128"),
        ({"rank": 0}, "rank"),
        ({"temperature": -1.0}, "temperature"),
        ({"hard": 1.5}, "hard"),
    ],
    ids=["block", "hidden", "rank", "temperature", "hard"],
)
def test_refuses_what_cannot_be(settings, said):
    with pytest.raises(WeftError, match=said):
        Sparse(**settings).build(64)


def test_three_forms_of_one_config():
    config = FEEDFORWARDS.parse("sparse(block=16, hidden=64, hard=0.5)")
    assert config == Sparse(block=16, hidden=64, hard=0.5)
    assert FEEDFORWARDS.read(write(config)) == config
    assert FEEDFORWARDS.parse(str(config)) == config
