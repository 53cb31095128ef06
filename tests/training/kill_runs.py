"""Trains a tiny run that is killed again and again; run as a program, results in a folder.

    python kill_runs.py FOLDER moments:COUNT:SEED    SIGKILL at COUNT random moments
                               files:EVERY:FIRST     SIGKILL just before file operations, one run
                                                     for every EVERY-th of them
                               signal:NAME           the signal at step 3
                               signal:NAME:NAME      two signals at step 3

One line of output for each. torch is loaded once and each life of a run is a fork, so a kill costs
milliseconds.
"""

import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import torch

torch.set_num_threads(1)

from tiny_runs import assert_same_run, two_stages  # noqa: E402  # after the path is set

from weft.training import Progress, train  # noqa: E402  # after the path is set

# What Python announces before it touches a file.
OPERATIONS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}


def run():
    return two_stages(steps=5, log_every=1, save_every=1, evaluate_every=2)


def life(folder: Path, before=lambda: None) -> int:
    """One process that trains until it ends or dies: its exit status, negative for a signal."""
    child = os.fork()
    if child == 0:
        before()
        train(run(), folder)
        os._exit(0)
    return child


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at_moments(
    folder: Path, count: int, seed: int, duration: float = 0.3, see=lambda folder: None
) -> int:
    """Kill `count` times at random moments; a run that ends before is begun anew.

    `duration` is how many seconds a run takes, until one has shown it; `see` is called after each
    kill.
    """
    draw, kills = random.Random(seed), 0
    while kills < count:
        child, start = life(folder), time.monotonic()
        time.sleep(draw.uniform(0, duration))
        os.kill(child, signal.SIGKILL)
        if ended(child) == 0:
            check(folder)
            shutil.rmtree(folder)
            duration = time.monotonic() - start
        else:
            kills += 1
            see(folder)
    finish(folder)
    return kills


def killed_at_files(folder: Path, every: int, first: int) -> int:
    """Kill before file operation number first, first + every, ... of an undisturbed run."""
    kills, number = 0, first
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        status = ended(life(folder, lambda: die_before(folder, number)))  # noqa: B023  # called at once
        if status == 0:
            return kills
        assert status == -signal.SIGKILL, status
        finish(folder)
        kills, number = kills + 1, number + every


def die_before(folder: Path, number: int) -> None:
    """Kill this process just before it touches the run's files for the given time."""
    left, place = number, str(folder)

    def hear(event, args):
        nonlocal left
        if event in OPERATIONS and isinstance(args[0], str | Path) and place in str(args[0]):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hear)


def finish(folder: Path) -> None:
    assert ended(life(folder)) == 0
    check(folder)


def check(folder: Path) -> None:
    assert_same_run(folder.with_name("undisturbed"), folder)
    left = {path.name for path in folder.iterdir()}
    known = {"settings.json", "metrics.jsonl", "done.json", "best", "last", ".lock"}
    assert left == known, f"something was left behind: {left - known}"


class SignalAt(Progress):
    """Sends this process signals after step 3."""

    def __init__(self, names):
        self.numbers = [getattr(signal, name) for name in names]

    def step(self, step):
        if step == 3:
            for number in self.numbers:
                os.kill(os.getpid(), number)


def signalled(folder: Path, *names: str) -> int:
    """The exit status of a run that gets these signals; 7 if it says that it was interrupted."""

    def train_and_tell():
        outcome = train(run(), folder, SignalAt(names))
        told = outcome.status, outcome.reason, outcome.steps
        os._exit(7 if told == ("interrupted", names[0], 3) else 1)

    status = ended(life(folder, train_and_tell))
    assert (folder / "checkpoints/00000003/state.json").exists()
    assert not (folder / "done.json").exists()
    finish(folder)
    return status


def main(folder: Path, jobs: list[str]) -> None:
    assert ended(life(folder / "undisturbed")) == 0
    for job in jobs:
        mode, *args = job.split(":")
        place = folder / job.replace(":", "-")
        if mode == "signal":
            print(signalled(place, *args), flush=True)
        else:
            kill = {"moments": killed_at_moments, "files": killed_at_files}[mode]
            print(kill(place, *map(int, args)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
