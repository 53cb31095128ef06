"""The first hour of a new user, played: `python tests/first_hour.py`.

The lines of the README's first hour, in order, in an empty folder; then a table is written, a model
fitted on it in Python, and used again from another folder with the table gone. Each line has a
limit in seconds of processor time, about four times what it took; wall time depends on what else
runs.
"""

import csv
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"
QUICK = ("example-data", "mixers", "advise", "pattern", "plan")
LIMITS = {"train": 180, "compare": 90, "bench": 40}  # seconds of processor time
OTHERS = 15
FITTING = 25
PASSIVE = {**os.environ, "OMP_WAIT_POLICY": "passive"}  # threads that wait take no processor time
FIT = """
import weft
model = weft.fit("own.csv", text="note", label="kind", steps=40, device="cpu", out="runs/own",
                 settings=["model.layers=1", "model.dim=32"])
print(model.predict(["the parcel came late"], proba=True))
"""
USE = """
import weft
print(weft.load("own").predict(["the parcel came late", "thank you so much"]))
"""


def lines():
    """The README's first hour, as arguments."""
    section = README.read_text().partition("## The first hour")[2]
    block = re.search(r"^```console\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    return [shlex.split(line, comments=True) for line in block.group(1).splitlines() if line]


def play(folder, commands):
    """Run them in turn; each must end well and within its limit."""
    for args, limit in commands:
        before, began = _used(), time.monotonic()
        program = [sys.executable, "-m", "weft", *args[1:]] if args[0] == "weft" else args
        done = subprocess.run(
            program, cwd=folder, capture_output=True, text=True, check=False, env=PASSIVE
        )
        used = _used() - before
        shown = " ".join(args)[:90].replace("\n", " ")
        print(f"{used:6.1f} s processor, {time.monotonic() - began:6.1f} s: {shown}", flush=True)
        assert done.returncode == 0, f"{shown}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        assert "Traceback" not in done.stderr + done.stdout, done.stderr
        assert used <= limit, f"{shown} took {used:.0f} s of the processor; stated: {limit}"


def _used():
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def readme(only=None):
    """Each line of the README with its limit."""
    return [
        (args, LIMITS.get(args[1], OTHERS)) for args in lines() if only is None or args[1] in only
    ]


def own_table(folder):
    """Fit on a table, then predict from another folder, with the table gone."""
    rows = [("the parcel came late", "complaint"), ("thank you so much", "praise")]
    with (folder / "own.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["note", "kind"])
        writer.writerows([f"{note}, order {i}", kind] for i in range(60) for note, kind in rows)
    play(folder, [([sys.executable, "-c", FIT], FITTING)])
    (folder / "own.csv").unlink()
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    os.rename(folder / "runs" / "own", elsewhere / "own")
    play(elsewhere, [([sys.executable, "-c", USE], OTHERS)])


def main():
    """All of it."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        play(folder, readme())
        assert len((folder / "predicted.csv").read_text().splitlines()) == 21
        assert (folder / "runs" / "mine" / "report.html").is_file()
        own_table(folder)


if __name__ == "__main__":
    main()
