"""Objectives from a settings file: read, trained, scored in their own metric, counted."""

import json

import pytest
from typer.testing import CliRunner

from weft.arena.analysis.flops import flops_per_token, forward_flops, parameters
from weft.arena.experiment.runs import baselines_of, model_of, objective_of, run_of
from weft.arena.experiment.settings import experiment, read_settings
from weft.arena.grid.grid import Cell
from weft.arena.grid.measure import identity
from weft.cli import app
from weft.errors import WeftError
from weft.objectives import OBJECTIVES

PAIRS = "reversal(length=6, symbols=5, train=40, valid=8, test=8)"
SETTINGS = """
objective = "{objective}"
task = "{task}"
[model]
layers = 1
dim = 16
heads = 2
[training]
steps = 2
batch = 4
device = "cpu"
"""
METRICS = {
    "causal_lm": "bits per byte",
    "conditional_masked_lm": "token accuracy",
    "electra": "accuracy",
    "masked_lm(words='bytes')": "accuracy",
    "mpnet": "accuracy",
    "permuted_lm": "accuracy",
    "pixel_lm": "bits per pixel",
    "sequence_to_sequence(metric='exact match')": "exact match",
    "span_corruption(decoder_layers=1)": "token accuracy",
}


def settings_of(tmp_path, objective, task=PAIRS):
    path = tmp_path / "settings.toml"
    path.write_text(SETTINGS.format(objective=objective, task=task))
    return path


@pytest.mark.parametrize("objective", METRICS)
def test_trained_and_scored(objective, tmp_path):
    path, run = settings_of(tmp_path, objective), tmp_path / "run"
    done = CliRunner().invoke(app, ["train", str(path), "--out", str(run)])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["eval", str(run), "--device", "cpu", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["metric"] == METRICS[objective]
    one = read_settings(path).experiment
    assert experiment(one.tables()) == one
    cell = Cell(label="full", length=6, seed=0, experiment=one, dense=True)
    assert identity(cell)["metric"] == METRICS[objective]
    baselines = baselines_of(one)
    assert bool(baselines) == (METRICS[objective] == "token accuracy")


def test_classes_as_numbers(tmp_path):
    one = read_settings(settings_of(tmp_path, "regress", PAIRS)).experiment
    assert model_of(one).classes == 1
    assert objective_of(one).metric == "mean squared error"


def test_a_phase_has_its_own(tmp_path):
    path = settings_of(tmp_path, "sequence_to_sequence")
    path.write_text(
        path.read_text() + '[[phase]]\nobjective = "span_corruption"\n[[phase]]\nsteps = 3\n'
    )
    run = run_of(read_settings(path).experiment)
    assert [stage.objective.name for stage in run.stages] == [
        "span_corruption",
        "sequence_to_sequence",
    ]


def test_left_out_it_is_the_task_s_own():
    one = experiment({"task": PAIRS})
    assert objective_of(one).name == "sequence_to_sequence"
    assert one.objective is None
    assert "objective" not in one.tables()
    assert set(baselines_of(one)) == {"one symbol", "copying"}


@pytest.mark.parametrize("wrong", ["masked", "masked_lm(rat=0.1)"])
def test_a_wrong_one_is_refused(wrong, tmp_path):
    with pytest.raises(WeftError, match="did you mean"):
        read_settings(settings_of(tmp_path, wrong))
    with pytest.raises(WeftError, match="objective is an objective"):
        experiment({"task": PAIRS, "objective": 3})


def test_operations_and_parameters_are_counted(tmp_path):
    """Of both sides, and of a generator besides the discriminator."""
    found = {
        name: model_of(read_settings(settings_of(tmp_path, name)).experiment)
        for name in ("masked_lm", "sequence_to_sequence", "conditional_masked_lm", "electra")
    }
    flops = {name: forward_flops(config, 6) for name, config in found.items()}
    assert flops["sequence_to_sequence"] > 2 * flops["masked_lm"]
    assert flops["electra"] > flops["masked_lm"]
    assert flops["conditional_masked_lm"] > flops["masked_lm"]
    per_token = flops_per_token(found["sequence_to_sequence"], 6)
    assert per_token == 3 * flops["sequence_to_sequence"] / 12
    sizes = {name: parameters(config) for name, config in found.items()}
    assert sizes["sequence_to_sequence"] > sizes["masked_lm"]


def test_every_objective_has_a_metric_of_the_table():
    from typing import get_args

    from weft.metrics import METRICS, MetricName, higher_is_better

    assert set(get_args(MetricName)) <= set(METRICS)
    for name in ("accuracy", "token accuracy", "exact match"):
        assert higher_is_better(name)
    for name in ("bits per byte", "bits per pixel", "mean squared error"):
        assert not higher_is_better(name)
    assert len(OBJECTIVES) >= 12
