"""`weft plan`: a table of kernels and reasons, for a mixer and for a pattern."""

import pytest
from typer.testing import CliRunner

from weft.cli import app

run = CliRunner().invoke


def shown(*args):
    done = run(app, ["plan", *args])
    assert done.exit_code == 0, done.output
    return [line.split(maxsplit=3) for line in done.output.splitlines()]


def test_a_mixer_on_a_gpu_that_is_not_here():
    header, row = shown("sliding_window(window=65)", "--length", "4096")
    assert header == ["place", "operation", "kernel", "why"]
    assert row[1:3] == ["attend", "triton"]
    assert (
        shown("sliding_window(window=65)", "--length", "4096", "--device", "cpu")[1][2] == "gather"
    )


def test_a_pattern_and_why_not():
    row = shown("sliding(64)", "--pattern", "--length", "4096", "--dtype", "float64", "--causal")[1]
    assert row[2] == "gather"
    assert "not triton: takes float16 and bfloat16; got float64" in row[3]


@pytest.mark.parametrize("spec", ["longformr", "sliding(64"])
def test_a_wrong_spec(spec):
    done = run(app, ["plan", spec, "--length", "64"])
    assert done.exit_code == 1
    assert "error: " in done.output
