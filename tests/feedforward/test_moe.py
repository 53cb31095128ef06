"""Noisy top-k experts: the equation, its losses, and Mixtral's block."""

import math

import pytest
import torch
import torch.nn.functional as F
from expert_oracle import routed

from weft.errors import WeftError
from weft.feedforward import Dense, MixtureOfExperts
from weft.feedforward.routing import balance_loss, variation

DIM = 8


def built(config, bias=True, seed=0):
    """The module with router and noise stirred: both start at 0."""
    torch.manual_seed(seed)
    module = config.build(DIM, bias=bias).double()
    with torch.no_grad():
        for part in (module.router, module.noise):
            if part is not None:
                part.weight.copy_(torch.randn_like(part.weight))
    return module


def tokens(*shape, seed=1):
    return torch.randn(*shape, DIM, dtype=torch.float64, generator=torch.manual_seed(seed))


def noisy_scores(module, x, noise):
    clean = x @ module.router.weight.T
    spread = torch.log1p(torch.exp(x @ module.noise.weight.T))
    return clean + noise * spread, clean, spread


def best(scores, top):
    choices = [row.argsort(descending=True)[:top].tolist() for row in scores]
    gates = [
        [row[i].exp() / sum(row[j].exp() for j in wanted) for i in wanted]
        for row, wanted in zip(scores, choices, strict=True)
    ]
    return choices, gates


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("top", [1, 3, 5])
def test_is_its_equation(top, mode, bias):
    module = built(MixtureOfExperts(experts=5, top=top), bias).train(mode == "train")
    x = tokens(2, 4).requires_grad_()
    torch.manual_seed(7)
    y = module(x).flatten(0, 1)
    torch.manual_seed(7)
    noise = torch.randn(8, 5, dtype=torch.float64) if mode == "train" else 0.0
    flat = x.flatten(0, 1)
    choices, gates = best(noisy_scores(module, flat, noise)[0], top)
    everyone = {(t, k) for t in range(8) for k in range(top)}
    expected = routed(module, flat, choices, gates, everyone, torch.relu)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)
    sources, wanted = [x, *module.experts.parameters(), module.router.weight], torch.randn_like(y)
    found = torch.autograd.grad(y, sources, wanted, allow_unused=top == 1)
    truth = torch.autograd.grad(expected, sources, wanted, allow_unused=top == 1)
    for ours, theirs in zip(found, truth, strict=True):
        if theirs is None or ours is None:
            assert top == 1  # the softmax over one is 1: nothing reaches the router
            continue
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def test_starts_with_even_chances():
    module, x = MixtureOfExperts(experts=8, top=2).build(DIM).train(), tokens(1, 400).float()
    assert not module.router.weight.any()
    assert not module.noise.weight.any()
    torch.manual_seed(0)
    choice, _ = module.route(x[0], module.router_input(x[0])[1])
    share = torch.bincount(choice.flatten(), minlength=8) / 800
    assert (share - 1 / 8).abs().max() < 0.05


def test_losses_are_the_papers():
    config = MixtureOfExperts(experts=5, top=2, importance=0.3, load=0.7)
    module, x = built(config).train(), tokens(1, 9)
    torch.manual_seed(7)
    module(x)
    torch.manual_seed(7)
    scores, clean, spread = noisy_scores(module, x[0], torch.randn(9, 5, dtype=torch.float64))
    importance, load = torch.zeros(5).double(), torch.zeros(5).double()
    choices, gates = best(scores, 2)
    for t in range(9):
        for k, i in enumerate(choices[t]):
            importance[i] += gates[t][k]
        for i in range(5):
            others = sorted((scores[t, j] for j in range(5) if j != i), reverse=True)
            bar = (clean[t, i] - others[1]) / spread[t, i]
            load[i] += 0.5 * (1 + torch.erf(bar / math.sqrt(2)))

    def squared(v):
        return (v - v.mean()).square().mean() / v.mean() ** 2

    expected = 0.3 * squared(importance) + 0.7 * squared(load)
    torch.testing.assert_close(module.penalty(), expected)
    weights = [module.router.weight, module.noise.weight]
    for ours, theirs in zip(
        torch.autograd.grad(module.penalty(), weights),
        torch.autograd.grad(expected, weights),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_uniform_gates_cost_nothing():
    assert variation(torch.full((7,), 0.3)).item() == pytest.approx(0, abs=1e-12)
    assert variation(torch.tensor([1.0, 3.0])).item() == pytest.approx(0.25)
    module = MixtureOfExperts(experts=4, top=4).build(DIM).train()  # W_g = W_noise = 0
    with torch.no_grad():
        module.noise.weight.zero_()
    module.router_input = lambda x: (x, torch.zeros(len(x), 4))
    module(tokens(1, 9).float())
    assert module.penalty().item() == pytest.approx(0, abs=1e-12)


def test_padding_has_no_part_in_the_losses():
    config = MixtureOfExperts(experts=5, top=2, balance=0.5)
    module, x = built(config).train(), tokens(2, 6)
    valid = torch.ones(2, 6, dtype=torch.bool)
    valid[0, 2:4] = valid[1, 5] = False
    noise = torch.randn(12, 5, dtype=torch.float64)
    module.router_input = lambda flat: (flat, noise[: len(flat)])
    y = module(x, valid=valid)
    assert (y[~valid] == 0).all()
    padded = module.penalty()
    kept = noise[valid.flatten()]
    module.router_input = lambda flat: (flat, kept)
    torch.testing.assert_close(module(x[valid][None])[0], y[valid])
    torch.testing.assert_close(module.penalty(), padded)


def test_one_expert_is_a_dense_layer():
    module, x = built(MixtureOfExperts(experts=1, top=1)).train(), tokens(2, 5)
    dense = Dense(activation="relu").build(DIM).double()
    with torch.no_grad():
        for name in ("to_hidden", "to_out"):
            ours, theirs = getattr(module.experts, name), getattr(dense, name)
            theirs.weight.copy_(ours.weight[0].T)
            theirs.bias.copy_(ours.bias[0])
    torch.testing.assert_close(module(x), dense(x))


def test_equals_mixtral():
    model = pytest.importorskip(
        "transformers.models.mixtral.modeling_mixtral", reason="parity with its implementation"
    )
    from transformers import MixtralConfig

    settings = MixtralConfig(
        hidden_size=DIM,
        intermediate_size=12,
        num_local_experts=5,
        num_experts_per_tok=2,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    block = model.MixtralSparseMoeBlock(settings).double()
    config = MixtureOfExperts(
        experts=5, top=2, activation="swiglu", hidden=12, noisy=False, load=0.0, importance=0.0,
        balance=0.02,
    )  # fmt: skip
    module, x = built(config, bias=False).train(), tokens(2, 7)
    with torch.no_grad():
        block.gate.weight.copy_(module.router.weight)
        gate, value = module.experts.to_gate.weight, module.experts.to_hidden.weight
        block.experts.gate_up_proj.copy_(torch.cat((gate, value), 2).mT)
        block.experts.down_proj.copy_(module.experts.to_out.weight.mT)
    ours, theirs = module(x), block(x)
    # Their router's softmax is in float32.
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    valid = torch.ones(2, 7, dtype=torch.bool)
    valid[1, 3:] = False
    logits = x.flatten(0, 1) @ module.router.weight.T
    loss = model.load_balancing_loss_func((logits,), 5, 2, valid)
    module(x, valid=valid)
    torch.testing.assert_close(module.penalty(), 0.02 * loss, check_dtype=False)
    even = torch.full((12, 4), 0.25)
    both = torch.stack((torch.arange(12) % 4, (torch.arange(12) + 1) % 4), 1)
    assert balance_loss(even, both).item() == pytest.approx(2.0)  # k for an even router


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top": 9}, "1 to experts=8; got top=9"),
        ({"top": 0}, "got top=0"),
        ({"noisy": False}, "noisy=False needs load=0; got load=0.1"),
        ({"importance": -1.0}, "got importance=-1.0"),
        ({"experts": 0}, "got experts=0"),
    ],
)
def test_refuses(settings, message):
    with pytest.raises(WeftError, match=message):
        MixtureOfExperts(**settings)


def test_gate_and_activation_are_a_choice():
    module, x = built(MixtureOfExperts(experts=3, top=1, activation="liglu")).eval(), tokens(1, 4)
    choices, gates = best(x[0] @ module.router.weight.T, 1)
    everyone = {(t, 0) for t in range(4)}
    expected = routed(module, x[0], choices, gates, everyone, lambda v: v)
    torch.testing.assert_close(module(x)[0], expected)
    assert F.silu is MixtureOfExperts(activation="swiglu").build(DIM).experts.activation
