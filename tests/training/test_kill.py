"""A run that is killed at any moment goes on and ends in the same weights and rows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("kill_runs.py")


def program(folder, *jobs):
    source = PROGRAM.parents[2] / "src"
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder), *jobs],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


def test_killed_a_few_times_and_signalled(tmp_path):
    jobs = (
        "moments:2:0",
        "files:60:25",
        "signal:SIGINT",
        "signal:SIGTERM",
        "signal:SIGTERM:SIGINT",
    )
    moments, files, interrupted, terminated, twice = program(tmp_path, *jobs)
    assert moments == 2
    assert files >= 2
    assert interrupted == terminated == 7  # saved, told so, ended by itself
    assert twice == 128 + 2  # the second signal ends the process at once


@pytest.mark.long
def test_killed_at_many_random_moments(tmp_path):
    assert program(tmp_path, "moments:60:1") == [60]


@pytest.mark.long
def test_killed_before_every_file_operation(tmp_path):
    (kills,) = program(tmp_path, "files:1:1")
    assert kills >= 100
