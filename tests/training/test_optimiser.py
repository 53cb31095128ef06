"""Which parameters decay, and the optimiser's memory by name."""

import pytest
import torch
from tiny_runs import stage, trunk

from weft.errors import WeftError
from weft.objectives import Classify, Head
from weft.training import TrainingSettings
from weft.training.learner import Learner
from weft.training.optimiser import build_optimiser, is_matrix, load_state, state_tensors


def model():
    return Classify().build(trunk(registers=2), Head(classes=3)).build()


def decaying(decay):
    made = model()
    names = {parameter: name for name, parameter in made.named_parameters()}
    optimiser = build_optimiser(made, TrainingSettings(decay=decay, weight_decay=0.1))
    groups = {group["weight_decay"]: group["params"] for group in optimiser.param_groups}
    assert sum(len(params) for params in groups.values()) == len(names)
    return {names[p] for p in groups[0.1]}, names.values()


def test_all_decay():
    found, names = decaying("all")
    assert found == set(names)


def test_norms_biases_and_embeddings_do_not():
    found, names = decaying("matrices")
    exempt = set(names) - found
    assert all(name.endswith("weight") for name in found)
    assert {"trunk.embedding.table", "trunk.embedding.positions"} <= exempt
    assert "trunk.embedding.registers" in exempt
    assert "head.0.bias" in exempt
    assert any(name.endswith("norm.weight") for name in exempt)
    assert "head.0.weight" in found
    assert {name for name in names if "to_q.weight" in name or "to_out.weight" in name} <= found


def test_a_matrix_is_known_by_shape_and_place():
    assert is_matrix("head.0.weight", torch.zeros(2, 2))
    assert not is_matrix("head.0.bias", torch.zeros(2))
    assert not is_matrix("trunk.embedding.table", torch.zeros(2, 2))


def test_the_memory_comes_back_by_name():
    one = Learner(stage(), 0, torch.device("cpu"))
    one.step(one.stage.source.batch(0), 0, 0)
    saved = state_tensors(one.optimiser, one.model)
    assert f"{next(iter(dict(one.model.named_parameters())))}/exp_avg" in saved
    two = Learner(stage(), 1, torch.device("cpu"))
    load_state(two.optimiser, two.model, saved)
    again = state_tensors(two.optimiser, two.model)
    assert again.keys() == saved.keys()
    assert all(torch.equal(again[key], saved[key]) for key in saved)
    assert all(again[key].data_ptr() != saved[key].data_ptr() for key in saved)


def test_a_moment_of_nothing_is_refused():
    made = model()
    optimiser = build_optimiser(made, TrainingSettings())
    with pytest.raises(WeftError, match="'ghost', which the model lacks"):
        load_state(optimiser, made, {"ghost/exp_avg": torch.zeros(1)})
