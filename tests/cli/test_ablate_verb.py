"""`weft ablate`: what the options mean, and what it says when they mean nothing."""

import pytest
from typer.testing import CliRunner

from weft.arena.ablation import ablate as ablations
from weft.arena.ablation.ablate import BASE
from weft.cli import app

run = CliRunner().invoke
RECIPE = """
task = "key_value(pairs=4, symbols=8, values=4, train=64, valid=16, test=16)"
[[modification]]
name = "RMSNorm"
model = {norm.kind = "rms"}
[[modification]]
name = "ReLU"
model = {activation = "relu"}
"""


class Planned(Exception):
    """Raised instead of running."""


@pytest.fixture
def planned(monkeypatch, tmp_path):
    """The ablation that a call would run, and its options."""
    (tmp_path / "recipe.toml").write_text(RECIPE)
    seen = []

    def stop(wanted, out, options, listener, *, command):
        seen.append((wanted, options))
        raise Planned

    monkeypatch.setattr(ablations, "ablate", stop)

    def call(*args):
        done = run(app, ["ablate", *args, "--out", str(tmp_path / "run")])
        assert isinstance(done.exception, Planned), done.output
        return seen[-1]

    return call


def test_options_become_an_ablation(planned, tmp_path):
    wanted, options = planned(
        *(str(tmp_path / "recipe.toml"), "--seeds", "2", "--steps", "7", "--final-steps", "9"),
        *("--only", "ReLU", "--device", "cpu", "--jobs", "4", "--set", "model.layers=3"),
    )  # fmt: skip
    assert [own.name for own in wanted.modifications] == [BASE, "ReLU"]
    assert (wanted.seeds, wanted.final_steps, options.jobs) == ((0, 1), 9, 4)
    for own in wanted.modifications:
        training = own.experiment.training
        assert (training.steps, training.device, own.experiment.model.sizes()["layers"]) == (
            7,
            "cpu",
            3,
        )


def test_another_task(planned, tmp_path):
    wanted, _ = planned(str(tmp_path / "recipe.toml"), "--task", "listops(length=64)")
    assert {str(own.experiment.task) for own in wanted.modifications} == {"listops(length=64)"}


def test_nothing_to_ablate(tmp_path):
    done = run(app, ["ablate", "--out", str(tmp_path)])
    assert done.exit_code == 2
    # The message stands in a box, and its lines break where the folder's name wants them to.
    assert "holds no ablation" in " ".join(done.output.replace("│", " ").split())


def test_an_unknown_recipe(tmp_path):
    done = run(app, ["ablate", "ablate_byte", "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert "did you mean" in done.output
