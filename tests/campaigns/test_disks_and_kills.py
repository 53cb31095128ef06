"""Trainings on a disk that fails, killed at random moments, under clocks that jump.

`WEFT_FAULTS` is the number of faults of each kind and of kills, `WEFT_FUZZ_SEED` the seed.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parent
COUNT, SEED = os.environ.get("WEFT_FAULTS", "10"), os.environ.get("WEFT_FUZZ_SEED", "0")

posix = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="forks, and reads /proc")


def program(name, *args):
    source = HOME.parents[1] / "src"
    command = [sys.executable, str(HOME / name), *map(str, args)]
    variables = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@posix
@pytest.mark.long
def test_faults_of_the_disk_lose_nothing(tmp_path):
    lines = program("faults.py", tmp_path / "runs", "--count", COUNT, "--seed", SEED)
    assert [line.partition(":")[0] for line in lines] == ["full", "sync", "rename", "torn"]
    assert all(line.endswith("all ends equal") for line in lines)


@posix
@pytest.mark.long
def test_kills_lose_nothing(tmp_path):
    args = ["--kills", COUNT, "--grid-kills", 1, "--seed", SEED]
    lines = program("kills.py", tmp_path / "runs", *args)
    told = [line.partition(":")[0] for line in lines if line.endswith("every end equal")]
    assert told == ["single", "staged", "grid"]
    for line in lines[:2]:
        count, saved = map(int, re.findall(r"\d+", line))
        assert count == int(COUNT)
        assert saved > 0, "every kill came before there was anything to lose"
