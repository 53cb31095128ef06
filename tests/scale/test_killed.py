"""A rank that is killed ends the others, and the run ends as if nothing had happened."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("killed.py")


@pytest.mark.long
def test_killed_ten_times_the_weights_are_those_of_an_undisturbed_run(tmp_path):
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), "10", "0"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["kills"] == 10
    assert found["same"] == 0.0
    assert found["smaller"] <= 1e-10
