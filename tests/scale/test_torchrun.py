"""`torchrun -m weft train`: what users type, with ranks that die and are started again."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

LIMIT = 60.0  # seconds in which a rank that dies ends the others
SETTINGS = """
mixer = "sliding_window(window=8)"
task = {{ name = "language", folder = "{text}", length = 32 }}
model = {{ layers = 1, dim = 16, heads = 2 }}
[training]
steps = 60
batch = 8
save_every = 5
log_every = 5
evaluate_every = 30
precision = "float64"
device = "cpu"
"""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
BROKEN = """
import os
from weft.training.learner import Learner
step = Learner.step
def broken(self, batch, number, made):
    if number == 2 and os.environ["RANK"] == "1":
        raise RuntimeError("this device is on fire")
    step(self, batch, number, made)
Learner.step = broken
"""

pytestmark = pytest.mark.long


def weft(*arguments: object, launcher: list[str] | None = None, **env: str) -> subprocess.Popen:
    started = [*(launcher or [sys.executable]), "-m", "weft", *map(str, arguments)]
    return subprocess.Popen(
        started,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
    )


def told(process: subprocess.Popen, seconds: float = 240) -> tuple[int, str, str]:
    shown, errors = process.communicate(timeout=seconds)
    return process.returncode, shown, errors


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("torchrun")
    text = folder / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 200)
    path = folder / "settings.toml"
    path.write_text(SETTINGS.format(text=text))
    return path


@pytest.fixture(scope="module")
def alone(settings) -> Path:
    """The run of one process."""
    out = settings.parent / "alone"
    status, _, errors = told(weft("train", settings, "--out", out))
    assert status == 0, errors
    return out


def workers(launcher: int) -> list[int]:
    """The processes that torchrun has started, by rank."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((place / "stat").read_text().rsplit(")", 1)[1].split()[1])
            ours = b"weft" in (place / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == launcher and ours:
            found.append(int(place.name))
    return sorted(found)


def rows(folder: Path) -> list[tuple[str, int]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [(row["kind"], row["step"]) for row in map(json.loads, lines)]


def farthest(one: Path, two: Path) -> float:
    left, right = (load_file(each / "last" / "model.safetensors") for each in (one, two))
    assert left.keys() == right.keys()
    return max((left[name] - right[name]).abs().max().item() for name in left)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="it finds ranks in /proc")
@pytest.mark.parametrize("mesh", ["dp_shard", "cp"])
def test_torchrun_starts_killed_ranks_again_and_the_run_ends_as_one_process(settings, alone, mesh):
    out = settings.parent / f"killed {mesh}"
    started = weft(
        *("train", settings, "--out", out, "--set", f"training.mesh.{mesh}=2"),
        launcher=[*TORCHRUN, "--max-restarts", "2", "--monitor-interval", "0.2"],
    )
    for kill in range(2):
        limit, step = time.monotonic() + LIMIT, 10 * kill + 5
        while not any(int(p.name) >= step for p in (out / "checkpoints").glob("[0-9]*")):
            assert started.poll() is None, told(started)
            assert time.monotonic() < limit
            time.sleep(0.05)
        ranks, killed_at = workers(started.pid), time.monotonic()
        assert len(ranks) == 2
        os.kill(ranks[kill], signal.SIGKILL)
        while set(ranks) & set(workers(started.pid)):
            assert time.monotonic() < killed_at + LIMIT
            time.sleep(0.05)
    status, shown, errors = told(started)
    assert status == 0, errors
    assert errors.count("going on after step") == 2
    assert errors.count("lost another process of the mesh") == 2, errors
    assert "Traceback" not in errors
    assert farthest(alone, out) <= 1e-10
    # Once, not once for each rank or start.
    assert rows(out) == rows(alone)
    assert errors.count("step 30:") == errors.count("step 60:") == 1
    assert shown.count("60 steps in") == 1
    verbs = (["eval"], ["generate", "--prompt", "the qu", "--max-new-tokens", "20"])
    for verb, *options in verbs:
        texts = [told(weft(verb, each, *options)) for each in (alone, out)]
        assert [text[0] for text in texts] == [0, 0], texts
        assert texts[0][1].replace(str(alone), str(out)) == texts[1][1]


def test_a_mesh_that_does_not_fit_ends_all_ranks_with_the_way_out(settings):
    out, began = settings.parent / "wrong", time.monotonic()
    change = ("--set", "training.mesh.tp=3")
    status, _, errors = told(weft("train", settings, "--out", out, *change, launcher=TORCHRUN))
    assert status == 1
    assert time.monotonic() - began < LIMIT
    assert "start with torchrun --nproc-per-node 3" in errors
    assert "error_file: <N/A>" not in errors.split("Root Cause")[1]


def test_the_reason_of_the_rank_that_raised_is_in_the_summary(settings):
    (settings.parent / "broken_rank.py").write_text(BROKEN)
    given = ("--out", settings.parent / "broken", "--set", "training.mesh.dp_shard=2")
    started = weft(
        *("train", settings, *given, "--plugin", "broken_rank"),
        launcher=TORCHRUN,
        PYTHONPATH=str(settings.parent),
    )
    status, _, errors = told(started, LIMIT)
    assert status == 1
    assert "this device is on fire" in errors.split("Root Cause")[1]
    assert "rank 0 of 2 lost another process" in errors
