"""GShard: the equation token by token, groups, the random second expert, and NLLB's router."""

import math

import pytest
import torch
import torch.nn.functional as F
from expert_oracle import first_come, routed

from weft.errors import WeftError
from weft.feedforward import GShard, MixtureOfExperts

DIM = 8


def built(config, bias=True, seed=0):
    torch.manual_seed(seed)
    module = config.build(DIM, bias=bias).double()
    with torch.no_grad():
        module.router.weight.mul_(3)
    return module


def tokens(*shape, seed=1):
    return torch.randn(*shape, DIM, dtype=torch.float64, generator=torch.manual_seed(seed))


def two_best(module, x):
    """Choices and shares (t, 2) from the equation."""
    p = (x @ module.router.weight.T).softmax(-1)
    choices = [row.argsort(descending=True)[:2].tolist() for row in p]
    best = [[row[i], row[j]] for row, (i, j) in zip(p, choices, strict=True)]
    return choices, [[a / (a + b), b / (a + b)] for a, b in best]


def by_hand(module, x, group, capacity):
    """x (t, c), group by group."""
    parts = []
    for part in x.split(group):
        choices, gates = two_best(module, part)
        taken = first_come(choices, module.config.experts, capacity)
        parts.append(routed(module, part, choices, gates, taken, F.gelu))
    return torch.cat(parts)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("group", "capacity"), [(100, 0.75), (7, 0.75), (6, 1.0), (6, None)])
def test_is_its_equation(group, capacity, bias):
    config = GShard(experts=4, group=group, capacity=capacity, second="always")
    module, x = built(config, bias).train(), tokens(2, 9).requires_grad_()
    size = min(group, 18)
    room = 36 if capacity is None else math.ceil(capacity * 2 * size / 4)
    expected = by_hand(module, x.flatten(0, 1), group, room)
    y = module(x).flatten(0, 1)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)
    sources, wanted = [x, *module.parameters()], torch.randn_like(y)
    found = torch.autograd.grad(y, sources, wanted)
    for ours, theirs in zip(found, torch.autograd.grad(expected, sources, wanted), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def test_second_choices_stand_behind_all_first_ones():
    config = GShard(experts=4, group=100, capacity=0.5, second="always")
    module, x = built(config).train(), tokens(1, 24)
    choices, gates = two_best(module, x[0])
    taken = first_come(choices, 4, 6)
    assert any((t, 1) not in taken for t in range(24))
    eager = set()  # the twin: each token asks for both at once
    room = [6] * 4
    for token, wanted in enumerate(choices):
        for k, number in enumerate(wanted):
            if room[number] > 0:
                room[number] -= 1
                eager.add((token, k))
    y = module(x)[0]
    torch.testing.assert_close(y, routed(module, x[0], choices, gates, taken, F.gelu))
    assert not torch.allclose(y, routed(module, x[0], choices, gates, eager, F.gelu))


def test_the_second_expert_is_asked_as_often_as_twice_its_share():
    module, x = built(GShard(experts=4, capacity=None)).train(), tokens(1, 40)
    _, gates = two_best(module, x[0])
    share = torch.stack([row[1] for row in gates]).detach()
    asked = torch.zeros(40)
    torch.manual_seed(0)
    for _ in range(400):
        choice, gate = module.route(x[0], None)
        assert (choice[:, 0] < 4).all()
        asked += choice[:, 1] < 4
    torch.testing.assert_close(gate[:, 1].detach(), share)
    chance = (2 * share).clamp(max=1)
    # Four standard deviations of a mean of 400 coins are at most 0.1.
    assert (asked / 400 - chance).abs().max() < 0.1
    assert (asked / 400 - share).abs().max() > 0.2  # the check can see a wrong rule
    assert (module.eval().route(x[0], None)[0] < 4).all()


def test_loss_is_the_papers():
    config = GShard(experts=4, group=7, balance=0.5)
    module, x = built(config).train(), tokens(2, 9)
    valid = torch.ones(2, 9, dtype=torch.bool)
    valid[0, 3] = valid[1, 4:] = False
    module(x, valid=valid)
    p = (x.flatten(0, 1) @ module.router.weight.T).softmax(-1)
    expected = []
    for rows, real in zip(p.split(7), valid.flatten().split(7), strict=True):
        rows = rows[real]
        first = F.one_hot(rows.argmax(-1), 4).double().sum(0) / max(1, len(rows))
        expected.append((first * rows.sum(0) / max(1, len(rows))).mean())
    torch.testing.assert_close(module.penalty(), 0.5 * torch.stack(expected).mean())
    quiet = built(GShard(experts=4, balance=0.0)).train()
    quiet(x)
    assert quiet.penalty() is None


def test_one_expert_is_a_dense_layer():
    module, x = built(GShard(experts=1)).eval(), tokens(1, 5)
    experts = module.experts
    hidden = F.gelu(x @ experts.to_hidden.weight[0] + experts.to_hidden.bias[0])
    expected = hidden @ experts.to_out.weight[0] + experts.to_out.bias[0]
    torch.testing.assert_close(module(x), expected)
    torch.testing.assert_close(module.train()(x), expected)


def test_without_a_limit_it_is_the_plain_mixture_of_two():
    module, x = built(GShard(experts=4)).eval(), tokens(2, 5)
    plain = MixtureOfExperts(experts=4, top=2, activation="gelu", noisy=False, load=0.0)
    other = plain.build(DIM).double().eval()
    other.load_state_dict(module.state_dict())
    torch.testing.assert_close(module(x), other(x))


@pytest.mark.parametrize("capacity", [3, 20])
def test_router_equals_nllbs(capacity):
    model = pytest.importorskip(
        "transformers.models.nllb_moe.modeling_nllb_moe", reason="parity with its implementation"
    )
    from transformers import NllbMoeConfig

    settings = NllbMoeConfig(
        d_model=DIM,
        num_experts=4,
        expert_capacity=capacity,
        second_expert_policy="all",
        normalize_router_prob_before_dropping=True,
        moe_eval_capacity_token_fraction=-1.0,
    )
    router = model.NllbMoeTop2Router(settings).train()
    module = GShard(experts=4, group=20, capacity=capacity * 4 / 40, second="always")
    module = module.build(DIM, bias=False).train()
    x = tokens(1, 20).float()
    with torch.no_grad():
        router.classifier.weight.copy_(module.router.weight)
        _, shares, _ = router(x[0])
        # Experts that each answer with their number alone make the layer's output the shares.
        for part in (module.experts.to_hidden, module.experts.to_out):
            part.weight.zero_()
        module.experts.activation = torch.ones_like
        for i in range(4):
            module.experts.to_out.weight[i, 0, i] = 1.0
        y = module(x)[0]
    torch.testing.assert_close(y[:, :4], shares)
    assert (shares == 0).all(-1).any() == (capacity == 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group": 0}, "at least 1; got group=0"),
        ({"second": "never"}, "second is one of 'random', 'always'; got 'never'"),
        ({"capacity": 0}, "got capacity=0"),
        ({"balance": -1.0}, "got balance=-1.0"),
        ({"experts": 0}, "got experts=0"),
    ],
)
def test_refuses(settings, message):
    with pytest.raises(WeftError, match=message):
        GShard(**settings)
