"""What every feed-forward of the registry promises, alone and inside a stack."""

from functools import partial

import pytest
import torch

from weft.feedforward import (
    FEEDFORWARDS,
    Chunked,
    Dense,
    GShard,
    MixtureOfExperts,
    ProductKey,
    Sparse,
    Switch,
)
from weft.layers.penalty import penalties
from weft.mixers import Frame
from weft.models import Stack
from weft.testing import checks_for
from weft.testing.feedforwards import DIM, built

# Small, and with nothing drawn at random in training, so that two runs can be compared.
CASES = {
    **{name: FEEDFORWARDS[name]() for name in FEEDFORWARDS},
    "dense": Dense(activation="geglu"),
    "chunked": Chunked(tokens=10),
    "moe": MixtureOfExperts(experts=4, top=2, noisy=False, load=0.0, balance=0.1),
    "switch": Switch(experts=4, jitter=0.0),
    "gshard": GShard(experts=4, group=6, second="always"),
    "product_key": ProductKey(keys=4, heads=2, top=2, key_dim=4),
    "sparse": Sparse(block=4, rank=3, temperature=0.0, hard=1.0),
}
RANDOM = {
    **CASES,
    "moe": MixtureOfExperts(experts=4, top=2),
    "switch": Switch(experts=4),
    "gshard": GShard(experts=4, group=6),
}
ROUTED = ["gshard", "moe", "switch"]
OWN_TESTS = {"sparse", "gate", "with_sru"}  # of compilation, in their files


def tokens(*shape, seed=1):
    return torch.randn(*shape, DIM, dtype=torch.float64, generator=torch.manual_seed(seed))


def stack(config, **settings):
    return Stack(frame=Frame(dim=DIM, heads=2), order="sfsf", feedforward=config, **settings)


@pytest.mark.parametrize("name", FEEDFORWARDS)
def test_every_variant_has_a_paper(name):
    assert FEEDFORWARDS[name].traits.paper.rpartition(", ")[2].startswith("https://arxiv.org/")
    assert FEEDFORWARDS[name].__module__ == f"weft.feedforward.{name}"


def checks():
    for name in sorted(RANDOM):
        for rule, check in checks_for(CASES[name]):
            options = {"silent": ["to_query.bias"]} if rule == "learning" else {}
            yield pytest.param(partial(check, **options), id=f"{name}-{rule}")
    for name in ROUTED:
        for rule, check in checks_for(RANDOM[name]):
            yield pytest.param(check, id=f"{name}, random-{rule}")


@pytest.mark.parametrize("check", list(checks()))
def test_contract(check):
    check()


def test_a_limit_in_evaluation_makes_tokens_compete():
    """Why `eval_capacity` is None by default; and the check above sees the difference."""
    module, x = built(Switch(experts=4, eval_capacity=0.5)).eval(), tokens(1, 12)
    whole = module(x)
    alone = torch.cat([module(x[:, i : i + 1]) for i in range(12)], 1)
    assert not torch.allclose(alone, whole)


@pytest.mark.parametrize("name", sorted(RANDOM))
def test_routers_alone_have_penalties(name):
    module = built(RANDOM[name]).train()
    module(tokens(4, 40))
    assert (penalties(module) is not None) == (name in ROUTED)


@pytest.mark.parametrize("name", ROUTED)
def test_penalties_teach_the_router_alone(name):
    module, x = built(RANDOM[name]).train(), tokens(2, 9).requires_grad_()
    module(x)
    penalties(module).backward()
    assert x.grad is None
    taught = {n for n, p in module.named_parameters() if p.grad is not None and p.grad.any()}
    assert taught
    assert all(n.startswith(("router", "noise")) for n in taught)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", sorted(set(CASES) - OWN_TESTS))
def test_compiles_as_one_graph(name, mode):
    module, x = built(CASES[name]).train(mode == "train"), tokens(2, 9)
    valid = torch.ones(2, 9, dtype=torch.bool)
    valid[1, 5:] = False
    torch.compiler.reset()
    graph = torch.compile(module, fullgraph=True, dynamic=False, backend="aot_eager")
    expected, found = (f(x, valid=valid) for f in (module, graph))
    torch.testing.assert_close(found, expected)
    if mode == "train":
        wanted, sources = torch.randn_like(x), list(module.parameters())
        again = torch.autograd.grad(graph(x, valid=valid), sources, wanted, allow_unused=True)
        once = torch.autograd.grad(module(x, valid=valid), sources, wanted, allow_unused=True)
        for ours, theirs in zip(again, once, strict=True):
            if theirs is None:
                assert ours is None or not ours.any()
            else:
                torch.testing.assert_close(ours, theirs)


def gradients(module, x):
    module.zero_grad()
    torch.manual_seed(5)
    loss = (module(x) * tokens(*x.shape[:2], seed=9)).sum()
    extra = penalties(module)
    (loss if extra is None else loss + 10 * extra).backward()
    return {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", sorted(RANDOM))
def test_recomputation_leaves_the_gradients(name):
    settings = RANDOM[name]
    torch.manual_seed(0)
    plain = stack(settings).build(causal=True).double().train()
    again = stack(settings, recompute="checkpoint").build(causal=True).double().train()
    again.load_state_dict(plain.state_dict())
    x = tokens(2, 6)
    one, two = gradients(plain, x), gradients(again, x)
    assert one.keys() == two.keys()
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, rtol=0, atol=1e-10)


def total(module, x):
    """Loss and penalties, the same numbers being drawn each time; buffers stay as they were."""
    buffers = {n: b.clone() for n, b in module.named_buffers()}
    torch.manual_seed(5)
    loss = (module(x) * tokens(*x.shape[:2], seed=9)).sum()
    extra = penalties(module)
    module.load_state_dict(buffers, strict=False)
    return loss if extra is None else loss + 10 * extra


@pytest.mark.parametrize("name", sorted(set(RANDOM) - {"sparse"}))  # straight through: no slope
def test_reversible_gradients_are_slopes(name):
    """Of the last layer: penalties do not reach the layers below, so its slope is the whole."""
    torch.manual_seed(0)
    module = stack(RANDOM[name], recompute="reversible").build(causal=True).double().train()
    x = tokens(2, 6)
    body = module.sublayers[3].body
    parameter = body.router.weight if name in ROUTED else max(body.parameters(), key=torch.numel)
    total(module, x).backward()
    place = parameter.grad.abs().flatten().argmax()
    step, values = 1e-6, []
    for sign in (1, -2):
        with torch.no_grad():
            parameter.view(-1)[place] += sign * step
            values.append(total(module, x).item())
    slope = (values[0] - values[1]) / (2 * step)
    assert parameter.grad.flatten()[place].item() == pytest.approx(slope, rel=1e-4, abs=1e-8)
    assert abs(slope) > 1e-6
