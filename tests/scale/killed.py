"""A run of two processes of which one is killed again and again; run as a program.

    python killed.py FOLDER COUNT SEED

COUNT times: two ranks begin or go on, and one of them is killed (SIGKILL) at a random moment; the
other has to end by itself within a minute. Then the run goes on with two processes and, in a copy,
with one alone. Prints the largest difference of weights from a run that nobody disturbed, for both.
torch is loaded once; ranks are forks.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

import torch

torch.set_num_threads(1)

from checks import mesh_of, stage  # noqa: E402  # after the threads are set
from safetensors.torch import load_file  # noqa: E402

from weft.training import Run, train  # noqa: E402

LIMIT = 60.0  # seconds in which a rank that lost the other has to end


def begun(folder: Path, mesh: str | None) -> list[int]:
    """The processes of a training."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    ranks = 1 if mesh is None else 2
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks}
            own |= {"MASTER_ADDR": "localhost", "MASTER_PORT": port}
            os.environ.update({name: str(value) for name, value in own.items()})
            train(run(mesh), folder)
            os._exit(0)
        children.append(child)
    return children


def run(mesh: str | None) -> Run:
    often = {"steps": 30, "save_every": 3, "log_every": 1, "evaluate_every": 50}
    return Run(stages=(stage(mesh=None if mesh is None else mesh_of(mesh), **often),))


def ended(children: list[int]) -> list[int]:
    """Exit statuses, of processes that end in time."""
    found, limit = [], time.monotonic() + LIMIT
    for child in children:
        while (done := os.waitpid(child, os.WNOHANG))[0] == 0:
            assert time.monotonic() < limit, "a rank that lost the other did not end"
            time.sleep(0.02)
        found.append(os.waitstatus_to_exitcode(done[1]))
    return found


def main(folder: Path, count: int, seed: int) -> None:
    draw, mesh, kills = random.Random(seed), "dp_shard=2", 0
    start = time.monotonic()
    assert ended(begun(folder / "undisturbed", mesh)) == [0, 0]
    duration, home = time.monotonic() - start, folder / "killed"
    steps = []
    while kills < count:
        children = begun(home, mesh)
        time.sleep(draw.uniform(0.2, 1.2) * duration)
        os.kill(children[kills % 2], signal.SIGKILL)
        statuses = ended(children)
        if statuses == [0, 0]:
            shutil.rmtree(home)  # it ended before
            continue
        kills += 1
        saved = home / "checkpoints"
        steps.append(max((int(p.name) for p in saved.glob("[0-9]*")), default=0))
        if (home / "done.json").exists():
            shutil.rmtree(home)
    smaller = folder / "smaller"
    if home.exists():
        shutil.copytree(home, smaller)
    found = {"kills": kills, "steps": steps}
    for name, place, shape in (("same", home, mesh), ("smaller", smaller, None)):
        assert set(ended(begun(place, shape))) == {0}
        found[name] = difference(folder / "undisturbed", place)
    print(json.dumps(found))


def difference(one: Path, two: Path) -> float:
    """The largest one of the last weights; rows of metrics are there once each."""
    rows = [json.loads(line) for line in (two / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["kind"] == "train"] == list(range(1, 31))
    left, right = (load_file(folder / "last" / "model.safetensors") for folder in (one, two))
    assert left.keys() == right.keys()
    return max((left[name] - right[name]).abs().max().item() for name in left)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
