"""Checkpointing: the same numbers as storing, from fewer stored ones."""

import pytest
import torch
from model_parts import DIM, Learner, RunningMean, assert_same, built, gradients, normal, stack

from weft.mixers import MIXERS

FULL = MIXERS["full"]
VALID = torch.tensor([[1, 1, 1, 0, 1], [0, 1, 1, 0, 0]], dtype=torch.bool)
SETTINGS = {
    "dropout": {"dropout": 0.3},
    "attention dropout": {"mixer": FULL(), "frame": {"dropout": 0.3}},
    "learning mixer": {"mixer": Learner(), "dropout": 0.2},
    "context": {"order": "scf", "cross": FULL(), "dropout": 0.1},
}


def run(module, seed=5):
    """Output, gradients, the buffers after backward and the next random number."""
    x = normal(2, 5, DIM).requires_grad_()
    context = normal(2, 4, DIM, seed=1).requires_grad_()
    crossing = "c" in module.config.order
    torch.manual_seed(seed)
    given = {"valid": VALID, "context": context if crossing else None}
    # Twice, so that backward has to return to the first moment from behind the second.
    y = module(x, **given) + 2 * module(x.cos(), **given)
    inputs = (x, context) if crossing else (x,)
    grads = gradients(module, (y * normal(2, 5, DIM, seed=9)).sum(), *inputs)
    rest = dict(module.named_buffers()) | {"random": torch.rand(3)}
    return {"y": y.detach(), **grads, **rest}


@pytest.mark.parametrize("case", SETTINGS)
def test_checkpointing_changes_nothing(case):
    stored = run(built(stack(**SETTINGS[case])))
    again = run(built(stack(**SETTINGS[case], recompute="checkpoint")))
    assert_same(again, stored, rtol=0, atol=0)


def saved_numbers(module, x) -> int:
    """Numbers that autograd keeps for backward, parameters not counted."""
    own, kept = {p.data_ptr() for p in module.parameters()}, []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(0 if t.data_ptr() in own else t.numel()) or t, lambda t: t
    ):
        module(x)
    return sum(kept)


def growth(recompute) -> float:
    """Kept numbers per sublayer, in units of one (b, n, c) tensor."""
    x = normal(2, 5, DIM).requires_grad_()
    settings = {"mixer": RunningMean(), "recompute": recompute, "dropout": 0.1}
    few, many = (built(stack(order="sf" * layers, **settings)) for layers in (2, 10))
    return (saved_numbers(many, x) - saved_numbers(few, x)) / 16 / x.numel()


def test_checkpointing_stores_one_tensor_per_sublayer():
    assert growth("nothing") > 4
    assert growth("checkpoint") == 1
    assert growth("reversible") == 0


def test_evaluation_without_gradients_agrees():
    modules = [built(stack(recompute=kind)).eval() for kind in ("nothing", "checkpoint")]
    with torch.no_grad():
        outputs = [module(normal(2, 5, DIM)) for module in modules]
    assert torch.equal(*outputs)
