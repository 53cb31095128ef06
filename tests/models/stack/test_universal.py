"""The Universal Transformer against a loop over single tokens, written from the equations."""

import copy
import math

import pytest
import torch
from model_parts import DIM, built, decoder, encoder, ids, normal, stack

from weft.errors import Unsupported, WeftError
from weft.layers.penalty import penalties
from weft.mixers import MIXERS
from weft.models import Universal, load, save
from weft.models.stack.sublayer import StackInputs

FULL = MIXERS["full"]
STEPS = 5


def universal(**settings) -> Universal:
    return Universal(**{"steps": STEPS, "ponder": 0.5, "epsilon": 0.05, **settings})


def spread(module):
    """Halting that differs from token to token: the unit is loud and its bias low."""
    with torch.no_grad():
        module.depth.to_halt.weight.normal_(generator=torch.Generator().manual_seed(1)).mul_(1.0)
        module.depth.to_halt.bias.fill_(-0.8)
    return module


def wave(index: int, k: int) -> float:
    """Channel k of the sinusoid of a position or a step."""
    angle = index * 10000.0 ** (-(k - k % 2) / DIM)
    return math.cos(angle) if k % 2 else math.sin(angle)


def signal(module, step, position):
    if module.depth.signals is not None:
        return module.depth.signals[step]
    waves = [wave(position, k) + wave(step, k) for k in range(DIM)]
    return torch.tensor(waves, dtype=torch.float64)


@torch.no_grad()
def by_hand(module, x, epsilon):
    """(1, n, c) -> its output, and N and R of each token; probabilities token by token."""
    n, block = x.shape[1], list(module.sublayers)
    h = [x[0, i] for i in range(n)]
    weights, outs = [[] for _ in range(n)], [torch.zeros(DIM, dtype=x.dtype) for _ in range(n)]
    halted = [False] * n
    for step in range(STEPS):
        entered = torch.stack([h[i] + signal(module, step, i) for i in range(n)])[None]
        for sub in block:
            entered = entered + sub.body(sub.norm(entered))
        for i in range(n):
            if halted[i]:
                continue
            h[i] = entered[0, i]
            logit = h[i] @ module.depth.to_halt.weight[0] + module.depth.to_halt.bias[0]
            p, before = 1 / (1 + torch.exp(-logit)), sum(weights[i])
            halted[i] = bool(before + p >= 1 - epsilon) or step == STEPS - 1
            weights[i].append(1 - before if halted[i] else p)
            outs[i] = outs[i] + weights[i][-1] * h[i]
    return torch.stack(outs)[None], [len(w) for w in weights], [w[-1] for w in weights], weights


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_equals_a_loop_over_tokens(kind, causal):
    config = stack(order="sf", mixer=FULL(), depth=universal(signal=kind))
    module, x = spread(built(config, causal=causal)).train(), normal(1, 9, DIM)
    got = module(x)
    expected, count, rest, weights = by_hand(module, x, epsilon=0.05)
    torch.testing.assert_close(got, module.norm(expected), rtol=1e-10, atol=1e-10)
    assert module.depth.taken[0].tolist() == count
    assert len(set(count)) > 1  # or nothing was tested
    for own in weights:
        assert float(sum(own)) == pytest.approx(1.0)
    cost = 0.5 * sum(n + r for n, r in zip(count, rest, strict=True)) / 9
    assert penalties(module).item() == pytest.approx(float(cost), rel=1e-10)


def test_the_loop_notices_a_halting_unit_that_is_read_too_early():
    module = spread(built(stack(order="sf", mixer=FULL(), depth=universal()))).eval()
    x = normal(1, 9, DIM)
    expected = by_hand(module, x, epsilon=0.5)[0]
    assert (module(x) - module.norm(expected)).abs().max() > 1e-3


def test_ponder_costs_have_gradients():
    config = stack(order="sf", mixer=FULL(), depth=universal())
    module, x = spread(built(config)).train(), normal(2, 9, DIM)
    module(x)
    penalties(module).backward()
    assert module.depth.to_halt.weight.grad.abs().max() > 0
    assert module.sublayers[0].body.project.to_q.weight.grad.abs().max() > 0
    copy.deepcopy(module)  # a cost that belongs to a graph does not stand in the way


def test_a_small_price_is_gradient_towards_fewer_steps():
    """The rest R = 1 − Σ p falls as p grows: descending the cost raises the bias."""
    module = spread(built(stack(order="sf", mixer=FULL(), depth=universal()))).train()
    module(normal(2, 9, DIM))
    penalties(module).backward()
    assert module.depth.to_halt.bias.grad < 0


def test_without_halting_it_is_the_block_repeated():
    config = stack(order="sf", mixer=FULL(), depth=universal(adaptive=False, signal="learned"))
    module, x = built(config).eval(), normal(2, 9, DIM)
    y = x
    for step in range(STEPS):
        y = y + module.depth.signals[step]
        for sub in module.sublayers:
            y = sub(y, StackInputs())
    torch.testing.assert_close(module(x), module.norm(y), rtol=1e-12, atol=1e-12)
    assert penalties(module) is None


def test_ends_when_all_have_halted():
    module = built(stack(order="sf", mixer=FULL(), depth=universal())).eval()
    with torch.no_grad():
        module.depth.to_halt.bias.fill_(20.0)
    calls = []
    module.sublayers[0].register_forward_hook(lambda *_: calls.append(1))
    module(normal(2, 9, DIM))
    assert len(calls) == 1
    assert (module.depth.taken == 1).all()
    with torch.no_grad():
        module.depth.to_halt.bias.fill_(-20.0)
    module(normal(2, 9, DIM))
    assert len(calls) == 1 + STEPS


def test_padding_and_batch_mates_change_nothing():
    config = encoder(order="sf", mixer=FULL(), depth=universal(), embed={"registers": 1})
    model = spread_trunk(built(config)).train()
    x, valid = ids(2, 9), torch.ones(2, 9, dtype=torch.bool)
    valid[1, [0, 4, 5]] = False
    together, cost = model(x, valid=valid), penalties(model)
    costs = []
    for row in range(2):
        alone = model(x[row][valid[row]][None])
        torch.testing.assert_close(together[row][valid[row]], alone[0], rtol=1e-9, atol=1e-9)
        costs.append(penalties(model) * (valid[row].sum() + 1))
    torch.testing.assert_close(cost, sum(costs) / (valid.sum() + 2), rtol=1e-9, atol=1e-9)


def spread_trunk(model):
    spread(model.stack)
    return model


@pytest.mark.parametrize("registers", [0, 2])
def test_decodes(registers, tmp_path):
    config = decoder(order="sf", mixer=FULL(), depth=universal(), embed={"registers": registers})
    model, x = spread_trunk(built(config)).eval(), ids(2, 9)
    whole, state, parts = model(x), model.start(2), []
    assert len(set(model.stack.depth.taken.flatten().tolist())) > 1
    for part in x.split((3, 1, 1, 4), dim=1):
        y, state = model.step(part, state)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-10, atol=1e-10)
    assert state.size() == model.state_size(9) == 2 * DIM * STEPS * (9 + registers)
    again = load(save(model, tmp_path / "model"))
    assert again.config == model.config
    assert torch.equal(again(x), whole)


def test_compiles_as_one_graph():
    module = spread(built(stack(order="sf", mixer=FULL(), depth=universal()))).eval()
    x = normal(2, 9, DIM)
    torch.compiler.reset()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), module(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"depth": "universal(steps=0)"}, WeftError, "got steps=0"),
        ({"depth": "universal(epsilon=1.0)"}, WeftError, "got epsilon=1.0"),
        ({"depth": "universal(ponder=-1)"}, WeftError, "got ponder=-1"),
        (
            {"depth": "universal(signal='none')"},
            WeftError,
            "signal is one of .* got 'none'",
        ),
        ({"depth": "universal", "shared": 1}, WeftError, "shares its block already"),
        ({"depth": "universal", "recompute": "reversible"}, Unsupported, "every layer once"),
    ],
)
def test_refuses(settings, error, message):
    with pytest.raises(error, match=message):
        stack(mixer=FULL(), **settings)
