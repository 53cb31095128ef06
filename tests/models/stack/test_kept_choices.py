"""Stacks that run a sparse feed-forward twice choose the same units twice."""

import contextlib
import copy

import pytest
import torch
from model_parts import DIM, assert_same, built, gradients, normal, stack

from weft.feedforward import Sparse
from weft.feedforward.sparse import SparseFeedForward
from weft.layers.choice import ChoiceRecord, ReplayableChoice
from weft.models.stack.sublayer import StackInputs

SPARSE = Sparse(block=4, hidden=64, rank=8, hard=1.0, temperature=0.0)


def undecided(recompute):
    """A stack in float32 whose controllers hardly prefer one unit of a pair to the other.

    The last bit of x decides, and the two units do very different things.
    """
    module = built(
        stack(order="sf" * 4, mixer="full", feedforward=SPARSE, recompute=recompute)
    ).float()
    with torch.no_grad():
        for part in sparse_parts(module):
            rows = part.to_logits.weight
            part.to_logits.bias.zero_()
            rows[1::2] = rows[0::2] * (1 + 1e-7 * torch.randn_like(rows[0::2]))
    return module.train()


def sparse_parts(module):
    return [part for part in module.modules() if isinstance(part, SparseFeedForward)]


def run(module, forward):
    """Output and gradients; several tokens, so that some choice is at a tie."""
    x = normal(2, 24, DIM).float().requires_grad_()
    torch.manual_seed(2)
    y = forward(module, x)
    return {"y": y.detach(), **gradients(module, y.square().sum(), x)}


def streams(module, x):
    """The reversible equations in an ordinary graph, which stores everything."""
    pair = [x, x]
    for i, sub in enumerate(module.sublayers):
        pair[i % 2] = pair[i % 2] + sub.branch(pair[1 - i % 2], StackInputs())
    return module.norm((pair[0] + pair[1]) / 2)


def both():
    module = undecided("reversible")
    return run(copy.deepcopy(module), streams), run(module, lambda m, x: m(x))


def test_reversible_backward_uses_the_units_of_the_forward():
    stored, again = both()
    assert_same(again, stored, rtol=1e-3, atol=1e-3)


def test_a_twin_that_chooses_again_differentiates_another_function(monkeypatch):
    monkeypatch.setattr(ChoiceRecord, "replay", lambda self: contextlib.nullcontext())
    stored, again = both()
    assert torch.equal(again["y"], stored["y"])
    with pytest.raises(AssertionError):
        assert_same(again, stored, rtol=1e-3, atol=1e-3)


def gradient_after_a_change():
    """Rows of W2 that get a gradient, and the units chosen in forward, which then become unlikely.

    The controller changes between forward and backward, as if the second run saw other numbers.
    """
    module = built(stack(order="sf", mixer="full", feedforward=SPARSE, recompute="checkpoint"))
    part, seen = sparse_parts(module)[0], []
    handle = part.choice.register_forward_hook(lambda m, given, chosen: seen.append(chosen))
    torch.manual_seed(2)
    loss = module.train()(normal(1, 3, DIM)).square().sum()
    handle.remove()
    with torch.no_grad():
        part.to_logits.weight.neg_()
    loss.backward()
    units = seen[0].flatten(0, 1) + torch.arange(0, 64, 4)
    touched = set(part.to_out.weight.grad.abs().sum(-1).nonzero().flatten().tolist())
    return touched, set(units.flatten().tolist())


def test_checkpointed_backward_uses_the_units_of_the_forward():
    touched, chosen = gradient_after_a_change()
    assert touched
    assert touched <= chosen


def test_a_checkpointed_twin_that_chooses_again_is_found(monkeypatch):
    monkeypatch.setattr(ChoiceRecord, "replay", lambda self: contextlib.nullcontext())
    touched, chosen = gradient_after_a_change()
    assert not touched <= chosen


@pytest.mark.parametrize("recompute", ["reversible", "checkpoint"])
def test_dropout_draws_the_same_numbers_around_the_choice(recompute):
    sparse = Sparse(block=4, hidden=64, rank=8)
    settings = {"mixer": "full", "feedforward": sparse, "dropout": 0.3}
    again = built(stack(**settings, recompute=recompute)).train()
    plain = built(stack(**settings, recompute="nothing")).train()

    def grads(module, forward):
        torch.manual_seed(4)
        return gradients(module, forward(module, normal(2, 5, DIM)).square().sum())

    stored = streams if recompute == "reversible" else (lambda m, x: m(x))
    assert_same(grads(again, lambda m, x: m(x)), grads(plain, stored))


def test_nothing_is_kept_outside_a_recorded_run():
    module = undecided("reversible")
    run(module, lambda m, x: m(x))
    parts = [part for part in module.modules() if isinstance(part, ReplayableChoice)]
    assert len(parts) == 4
    assert all(part.recorded is None and part.replayed is None for part in parts)


def test_several_calls_are_repeated_in_their_order():
    module = torch.nn.Sequential(ReplayableChoice())
    choices = ChoiceRecord(module)
    first, second = torch.tensor([3, 1]), torch.tensor([2])
    with choices.record():
        module(first), module(second)
    for _ in range(2):
        with choices.replay():
            assert torch.equal(module(torch.tensor([0, 0])), first)
            assert torch.equal(module(torch.tensor([0])), second)
    assert torch.equal(module(torch.tensor([7])), torch.tensor([7]))
