"""`weft scale plan`: numbers of a rank before anything runs, and refusals with the way out."""

import json

import pytest
from typer.testing import CliRunner

from weft.cli.app import app

SETTINGS = """
mixer = "sliding_window(window=16)"
objective = "causal_lm"
task = { name = "language", length = 256 }
model = { layers = 2, dim = 16, heads = 2 }
training = { batch = 8 }
"""
WINDOW, LAYERS, ROWS, HEADS, WIDTH = 16, 2, 8, 2, 8


@pytest.fixture
def planned(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text(SETTINGS)

    def run(mesh, *options):
        return CliRunner().invoke(app, ["scale", "plan", str(path), "--mesh", mesh, *options])

    return run


def numbers(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_a_window_sends_its_border_and_keeps_a_share(planned):
    one, four = (numbers(planned(f"cp={ways}", "--json")) for ways in (1, 4))
    border = LAYERS * ROWS * (WINDOW - 1) * 2 * HEADS * WIDTH * 4
    # Forward its keys and values to the rank after it, backward their gradients to the one before.
    assert four["wire"]["cp"] == 2 * border
    assert 0.25 < four["activation_bytes"] / one["activation_bytes"] < 0.4
    assert four["kept_bytes"] == one["kept_bytes"]


def test_dp_is_short_and_rows_are_shared_out(planned):
    shown = planned("dp=4,tp=2").output
    assert "ranks                      8" in shown
    assert "rows and tokens of a rank  2 × 256" in shown
    for name in ("activations", "FLOPs of an update", "sent over copies", "sent over tp"):
        assert name in shown


@pytest.mark.parametrize(
    ("mesh", "says"),
    [
        ("tp=4", "multiples of tp"),
        ("ep=2", "this model has none"),
        ("dp=3", "change training.batch"),
        ("dp_shard=-1", "give --mesh with numbers"),
        ("dp", "a mesh is written dp_shard=4,tp=2"),
        ("cp=512", "at most 256 ranks"),
    ],
)
def test_what_does_not_fit_names_the_way_out(planned, mesh, says):
    result = planned(mesh)
    assert result.exit_code != 0
    assert says in " ".join(result.output.split())
