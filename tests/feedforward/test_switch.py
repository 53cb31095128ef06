"""Switch: the equation token by token, its limits, and Transformers' layer."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from expert_oracle import first_come, routed

from weft.errors import WeftError
from weft.feedforward import Dense, Switch
from weft.feedforward.routing import balance_loss, z_loss

DIM = 8


def built(config, bias=True, seed=0):
    torch.manual_seed(seed)
    module = config.build(DIM, bias=bias).double()
    with torch.no_grad():
        module.router.weight.mul_(8)
    return module


def tokens(*shape, seed=1):
    return torch.randn(*shape, DIM, dtype=torch.float64, generator=torch.manual_seed(seed))


def by_hand(module, x, capacity):
    """(t, c) -> (t, c) from the equation, and which tokens found room."""
    p = (x @ module.router.weight.T).softmax(-1)
    choices = [[int(i)] for i in p.argmax(-1)]
    taken = first_come(choices, module.config.experts, capacity)
    return routed(module, x, choices, [[row.max()] for row in p], taken, F.gelu), taken


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("capacity", [None, 0.5, 1.0])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_is_its_equation(mode, capacity, bias):
    settings = {"capacity": capacity, "eval_capacity": capacity, "jitter": 0.0}
    module, x = built(Switch(experts=4, **settings), bias).train(mode == "train"), tokens(2, 9)
    x.requires_grad_()
    room = len(x.flatten(0, 1)) if capacity is None else math.ceil(18 / 4 * capacity)
    expected, taken = by_hand(module, x.flatten(0, 1), room)
    assert capacity != 0.5 or len(taken) < 18
    y = module(x).flatten(0, 1)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)
    sources = [x, *module.parameters()]
    wanted = torch.randn_like(y)
    for ours, theirs in zip(
        torch.autograd.grad(y, sources, wanted),
        torch.autograd.grad(expected, sources, wanted),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def test_dropped_tokens_are_exactly_zero_and_some_are_dropped():
    module, x = built(Switch(experts=4, capacity=0.5, jitter=0.0)).train(), tokens(1, 40)
    _, taken = by_hand(module, x[0], 5)
    dropped = [t for t in range(40) if (t, 0) not in taken]
    assert dropped
    y = module(x)[0]
    assert (y[dropped] == 0).all()
    assert (y[[t for t, _ in taken]] != 0).any(-1).all()


def test_one_expert_is_a_dense_layer():
    module, x = built(Switch(experts=1, jitter=0.0)).train(), tokens(2, 5)
    dense = Dense().build(DIM).double()
    with torch.no_grad():
        for name in ("to_hidden", "to_out"):
            ours, theirs = getattr(module.experts, name), getattr(dense, name)
            theirs.weight.copy_(ours.weight[0].T)
            theirs.bias.copy_(ours.bias[0])
    torch.testing.assert_close(module(x), dense(x), rtol=0, atol=1e-13)


def test_permuting_experts_with_the_router_changes_nothing():
    module, x = built(Switch(experts=4, jitter=0.0)), tokens(2, 9)
    other, order = copy.deepcopy(module), torch.tensor([2, 0, 3, 1])
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.copy_(parameter[order])
    torch.testing.assert_close(module(x), other(x), rtol=0, atol=1e-13)
    with torch.no_grad():  # the twin: experts without their router
        other.router.weight.copy_(module.router.weight)
    assert not torch.allclose(module(x), other(x))


def test_losses_are_the_papers():
    module, x = built(Switch(experts=4, jitter=0.0, balance=0.5, z_loss=0.25)).train(), tokens(2, 9)
    assert module.penalty() is None  # no forward yet
    module(x)
    logits = x.flatten(0, 1) @ module.router.weight.T
    p = logits.softmax(-1)
    share = torch.stack([(p.argmax(-1) == i).double().mean() for i in range(4)])
    expected = 0.5 * 4 * (share * p.mean(0)).sum() + 0.25 * logits.exp().sum(-1).log().pow(2).mean()
    torch.testing.assert_close(module.penalty(), expected)
    (ours,) = torch.autograd.grad(module.penalty(), [module.router.weight])
    (theirs,) = torch.autograd.grad(expected, [module.router.weight])
    torch.testing.assert_close(ours, theirs)
    assert module.eval().penalty() is None
    silent = built(Switch(experts=4, balance=0.0, z_loss=0.0)).train()
    silent(x)
    assert silent.penalty() is None


def test_the_losses_even_out_the_load():
    module, x = built(Switch(experts=4, jitter=0.0, balance=1.0, z_loss=0.0)).train(), tokens(4, 50)
    with torch.no_grad():
        module.router.weight[0] += x.mean((0, 1)) * 20  # nearly all tokens want the first expert
    optimiser = torch.optim.SGD([module.router.weight], lr=0.3)
    found = []
    for _ in range(60):
        module(x)
        found.append(module.penalty())
        optimiser.zero_grad()
        found[-1].backward()
        optimiser.step()
    assert found[0] > 1.2
    assert found[-1] - 1 < 0.4 * (found[0] - 1)


def test_an_even_split_costs_its_weight():
    choice = torch.arange(12)[:, None] % 4
    even = torch.full((12, 4), 0.25, dtype=torch.float64)
    assert balance_loss(even, choice).item() == pytest.approx(1.0)
    one_sided = F.one_hot(torch.zeros(12, dtype=torch.long), 4).double()
    assert balance_loss(one_sided, torch.zeros(12, 1)).item() == pytest.approx(4.0)


def test_padding_takes_no_room_and_no_part_in_the_losses():
    config = Switch(experts=4, capacity=0.6, jitter=0.0)
    module, x = built(config).train(), tokens(2, 9)
    valid = torch.ones(2, 9, dtype=torch.bool)
    valid[0, :4] = valid[1, 2] = False
    y = module(x.masked_fill(~valid[..., None], 1e6), valid=valid)
    assert (y[~valid] == 0).all()
    room = math.ceil(18 / 4 * 0.6)  # room counts places
    expected, _ = by_hand(module, x[valid], room)
    torch.testing.assert_close(y[valid], expected, rtol=0, atol=1e-12)
    padded = module.penalty()
    module(x[valid][None])
    torch.testing.assert_close(padded, module.penalty())


def test_jitter_is_noise_on_the_router_in_training_only():
    module, x = built(Switch(experts=4, jitter=0.3, capacity=None)), tokens(1, 6)
    assert torch.equal(module.eval()(x), module(x))
    module.train()
    torch.manual_seed(3)
    y = module(x)
    torch.manual_seed(3)
    noise = torch.empty(6, DIM, dtype=torch.float64).uniform_(0.7, 1.3)
    p = ((x[0] * noise) @ module.router.weight.T).softmax(-1)
    choices = [[int(i)] for i in p.argmax(-1)]
    gates = [[row.max()] for row in p]
    everyone = {(t, 0) for t in range(6)}
    torch.testing.assert_close(y[0], routed(module, x[0], choices, gates, everyone, F.gelu))
    assert module.router_input(x[0])[0].sub(x[0]).div(x[0]).abs().max() < 0.3


def test_the_router_stays_in_float32_under_autocast():
    module, x = Switch(experts=4).build(DIM), tokens(1, 6).float()
    seen = []
    module.router.register_forward_hook(lambda *given: seen.append(given[2].dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = module(x)
        module.penalty()
    assert seen == [torch.float32] * 2
    assert y.dtype == torch.bfloat16
    module.to(torch.bfloat16)(x.bfloat16())
    assert seen[-1] == torch.float32


def test_experts_start_small():
    module = Switch(experts=2, init_scale=0.25).build(100)
    assert 0.99 * 0.05 < module.experts.to_hidden.weight.abs().max() <= 0.05
    assert 0.99 * 0.025 < module.experts.to_out.weight.abs().max() <= 0.025


def test_expert_dropout_stands_for_the_models():
    assert Switch(expert_dropout=0.4).build(DIM, dropout=0.1).experts.dropout.p == 0.4
    assert Switch().build(DIM, dropout=0.1).experts.dropout.p == 0.1


def theirs(experts, capacity):
    switch = pytest.importorskip(
        "transformers.models.switch_transformers", reason="parity with its implementation"
    )
    model = pytest.importorskip(
        "transformers.models.switch_transformers.modeling_switch_transformers",
        reason="parity with its implementation",
    )
    config = switch.SwitchTransformersConfig(
        d_model=DIM,
        d_ff=4 * DIM,
        num_experts=experts,
        expert_capacity=capacity,
        dropout_rate=0.0,
        router_jitter_noise=0.0,
    )
    made = model.SwitchTransformersSparseMLP(config).double()
    made.router.dtype = torch.float64
    return model, made


@torch.no_grad()
def copied(module, other):
    other.router.classifier.weight.copy_(module.router.weight)
    for i in range(module.config.experts):
        part = other.experts[f"expert_{i}"]
        part.wi.weight.copy_(module.experts.to_hidden.weight[i].T)
        part.wo.weight.copy_(module.experts.to_out.weight[i].T)


@pytest.mark.parametrize("capacity", [0.5, 2.0])
def test_equals_transformers(capacity):
    config = Switch(experts=4, activation="relu", capacity=capacity, jitter=0.0)
    module, x = built(config, bias=False).train(), tokens(1, 20)
    model, other = theirs(4, math.ceil(20 / 4 * capacity))
    copied(module, other)
    torch.testing.assert_close(module(x), other(x), rtol=0, atol=1e-12)
    logits = x @ module.router.weight.T
    p = logits.softmax(-1)
    aux = model.load_balancing_loss_func(p, p.argmax(-1))
    torch.testing.assert_close(
        balance_loss(p[0], p[0].argmax(-1, keepdim=True)), aux, check_dtype=False
    )
    torch.testing.assert_close(z_loss(logits[0]), model.router_z_loss_func(logits))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"experts": 0}, "at least 1; got experts=0"),
        ({"capacity": 0.0}, "above 0, or None for no limit; got capacity=0.0"),
        ({"eval_capacity": -1.0}, "got eval_capacity=-1.0"),
        ({"jitter": 1.0}, r"in \[0, 1\); got jitter=1.0"),
        ({"balance": -0.1}, "got balance=-0.1"),
        ({"z_loss": -0.1}, "got z_loss=-0.1"),
        ({"init_scale": 0.0}, "above 0; got 0.0"),
        ({"expert_dropout": 1.0}, "expert_dropout is in"),
        ({"activation": "swigluu"}, "did you mean 'swiglu'"),
        ({"hidden": 0}, "got hidden=0"),
    ],
)
def test_refuses(settings, message):
    with pytest.raises(WeftError, match=message):
        Switch(**settings)
