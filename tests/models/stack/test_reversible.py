"""Reversible stacks against the same two streams in an ordinary autograd graph."""

import copy

import pytest
import torch
from model_parts import DIM, Learner, assert_same, built, gradients, normal, stack

from weft.mixers import MIXERS
from weft.models.stack.sublayer import StackInputs

FULL = MIXERS["full"]
VALID = torch.tensor([[1, 1, 1, 0, 1], [0, 1, 1, 0, 0]], dtype=torch.bool)
SETTINGS = {
    "plain": {},
    "one sublayer": {"order": "s"},
    "sandwich": {"order": "sssfsff", "dropout": 0.2},
    "dropout": {"dropout": 0.3, "mixer": FULL(), "frame": {"dropout": 0.3}},
    "learning mixer": {"mixer": Learner(), "dropout": 0.2},
    "context": {"order": "scfscf", "cross": FULL(), "dropout": 0.1},
    "shared": {"mixer": "linformer(rank=4, sharing='layers')"},
}


def two_streams(module, x, given):
    """y1 = x1 + F(x2), y2 = x2 + G(y1) for each two sublayers, written as the equations say."""
    streams = [x, x]
    for i, sub in enumerate(module.sublayers):
        target, source = i % 2, 1 - i % 2
        streams[target] = streams[target] + sub.branch(streams[source], given)
    return module.norm((streams[0] + streams[1]) / 2)


def run(module, forward, seed=5):
    x = normal(2, 5, DIM).requires_grad_()
    context = normal(2, 4, DIM, seed=1).requires_grad_()
    crossing = "c" in module.config.order
    context_valid = torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1]], dtype=torch.bool)
    given = StackInputs(VALID, context, context_valid) if crossing else StackInputs(VALID)
    torch.manual_seed(seed)
    # Twice, so that backward has to return to the first moment from behind the second.
    y = forward(module, x, given) + 2 * forward(module, x.cos(), given)
    inputs = (x, context) if crossing else (x,)
    grads = gradients(module, (y * normal(2, 5, DIM, seed=9)).sum(), *inputs)
    rest = dict(module.named_buffers()) | {"random": torch.rand(3)}
    return {"y": y.detach(), **grads, **rest}


def reversible(module, x, given):
    return module(x, **given._asdict())


@pytest.mark.parametrize("case", SETTINGS)
def test_gradients_equal_the_stored_graph(case):
    module = built(stack(**SETTINGS[case], recompute="reversible"))
    stored = run(copy.deepcopy(module), two_streams)
    again = run(module, reversible)
    assert_same(again, stored, rtol=1e-10, atol=1e-11)


def test_backward_accumulates_like_any_other():
    module, x = built(stack(recompute="reversible")), normal(2, 5, DIM)
    frozen = module.sublayers[1].body.to_hidden.weight.requires_grad_(False)
    two_streams(module, x, StackInputs()).square().sum().backward()
    expected = {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
    module(x).square().sum().backward()
    assert frozen.grad is None
    assert_same(
        {n: p.grad for n, p in module.named_parameters() if p.grad is not None},
        {n: 2 * g for n, g in expected.items()},
    )


def test_gradients_without_any_trainable_parameter():
    module = built(stack(recompute="reversible")).requires_grad_(False)
    x, again = normal(2, 5, DIM).requires_grad_(), normal(2, 5, DIM).requires_grad_()
    module(x).square().sum().backward()
    two_streams(module, again, StackInputs()).square().sum().backward()
    torch.testing.assert_close(x.grad, again.grad)


def test_rebuilding_survives_depth_in_float32():
    module = built(stack(order="sf" * 16, mixer=FULL(), recompute="reversible")).float()
    x, given = normal(2, 5, DIM).float(), StackInputs()
    got = gradients(module, module(x).square().sum())
    wide = copy.deepcopy(module).double()
    truth = gradients(wide, two_streams(wide, x.double(), given).square().sum())
    same = gradients(module, two_streams(module, x, given).square().sum())
    for name, exact in truth.items():
        stored = (same[name].double() - exact).norm()
        assert (got[name].double() - exact).norm() < 4 * stored + 1e-6 * exact.norm(), name


def test_half_precision_keeps_wide_streams():
    module = built(stack(order="sf" * 24, mixer=FULL(), recompute="reversible")).bfloat16()
    x, weights = normal(2, 5, DIM).bfloat16(), normal(2, 5, DIM, seed=4).bfloat16()
    assert module(x).dtype == torch.bfloat16
    wide = copy.deepcopy(module).double()
    truth = gradients(wide, (two_streams(wide, x.double(), StackInputs()) * weights.double()).sum())

    def error(y):
        grads = gradients(module, (y * weights).sum())
        return sum((grads[name].double() - truth[name]).square().sum() for name in truth)

    assert error(module(x)) < error(two_streams(module, x, StackInputs()))


def test_backward_outside_autocast_runs_as_forward_did():
    module = built(stack(mixer=FULL(), recompute="reversible")).float()
    x = normal(2, 5, DIM).float().requires_grad_()
    seen = []
    module.sublayers[0].body.register_forward_hook(lambda m, a, out: seen.append(out.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = module(x).float().square().sum()
    loss.backward()
    assert seen == [torch.bfloat16, torch.bfloat16]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        again = two_streams(module, x, StackInputs()).float().square().sum()
    (expected,) = torch.autograd.grad(again, x)
    torch.testing.assert_close(x.grad, expected, rtol=0.05, atol=0.05)


def test_evaluation_without_gradients_agrees():
    module = built(stack(recompute="reversible", dropout=0.1)).eval()
    x = normal(2, 5, DIM)
    with torch.no_grad():
        torch.testing.assert_close(
            module(x, valid=VALID), two_streams(module, x, StackInputs(VALID))
        )
