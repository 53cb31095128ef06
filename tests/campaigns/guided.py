"""Coverage-guided fuzzing of the parsers that are ours, with atheris (pip install atheris).

    python tests/campaigns/guided.py --inputs 100000 --seed 1 [--target specs ...]

Inputs that reach a new branch of weft are kept and changed further; the seeds, the readers and what
counts as a finding are those of `fuzzing.py`. A target runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from fuzzing import BYTES, TARGETS, Findings, Target, _late, judge, line, mutated

# Where a parser is ours; the modules whose branches guide.
GUIDED = {
    "specs": ["weft.spec", "weft.registry", "weft.config", "weft.errors"],
    "patterns": ["weft.spec", "weft.registry", "weft.config", "weft.patterns"],
    "settings": ["weft.config", "weft.spec", "weft.arena.experiment", "weft.models.stack.order"],
    "model configs": ["weft.config", "weft.models.saving", "weft.models.usage"],
    "native configs": ["weft.config", "weft.native"],
    "tables": ["weft.arena.tasks.table"],
}


def guided(name: str, inputs: int, seed: int) -> None:
    """Fuzz a target in this process, which ends here; its last line of output is its findings."""
    import atheris

    with atheris.instrument_imports(include=GUIDED[name]):
        target = TARGETS[name]()
    found, draw = Findings(), random.Random(seed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.signal(signal.SIGALRM, _late)

    def one(data: bytes) -> None:
        judge(found, target, data)
        if found.inputs == inputs:
            found.peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
            if found.peak > BYTES:
                found.raw["more than 2 GiB"] += 1
            print(json.dumps(vars(found)), flush=True)

    def change(data: bytes, most: int, number: int) -> bytes:
        """Half by libFuzzer, byte by byte; half as `fuzzing.py` changes a seed."""
        if draw.random() < 0.5:
            return atheris.Mutate(data, most)
        other = Target([data, draw.choice(target.seeds)], target.words, target.read)
        return mutated(draw, other if data else target)[:most]

    corpus = Path(tempfile.mkdtemp())
    for number, whole in enumerate(target.seeds):
        (corpus / f"{number:04d}").write_bytes(whole)
    longest = 2 * max(map(len, target.seeds)) + 2000
    options = [f"-runs={inputs}", f"-seed={seed or 1}", f"-max_len={longest}", "-timeout=0"]
    options += ["-rss_limit_mb=0", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one, custom_mutator=change)
    atheris.Fuzz()


def in_child(name: str, inputs: int, seed: int, seconds: float = 6000) -> dict:
    """A target in a process of its own; a crash is a finding like any other."""
    command = [sys.executable, "-W", "ignore", __file__, "--child", name]
    command += ["--inputs", str(inputs), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    rows = [text for text in done.stdout.splitlines() if text.startswith('{"inputs"')]
    if rows:
        return json.loads(rows[-1])
    crash = f"status {done.returncode}: {done.stderr[-500:]}"
    return {"inputs": inputs, "accepted": 0, "refused": 0, "raw": {crash: 1}, "examples": {}}


def main() -> int:
    """Run targets and print a line of figures for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=10_000, help="of each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", action="append", choices=GUIDED)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        guided(given.child, given.inputs, given.seed)
    bad = 0
    for name in given.target or GUIDED:
        found = in_child(name, given.inputs, given.seed)
        bad += sum(found["raw"].values())
        print(line(name, found), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
