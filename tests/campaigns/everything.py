"""All campaigns by one command, in processes side by side, within a limit of time.

    python tests/campaigns/everything.py --out FOLDER [--jobs 13] [--seconds 480] [--kind fuzz ...]
                                         [--known ROWS ...] [--share 1.0]

A job is a part of a campaign by a seed of its own, in a process of its own; its figures become a
line of FOLDER/trust.jsonl as soon as they are known. Jobs that are in it, or in `--known`, are not
run again, so a second call goes on where the first was stopped. `--share` makes all smaller. What a
machine has not (a compiler, atheris, a CUDA device) leaves its jobs out, with a word.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
HOME = Path(__file__).resolve().parent
ROOT = HOME.parents[1]
# How many of a kind may run at once, as they need memory; all others as many as there are jobs.
AT_ONCE = {"lengths": 6, "kills": 4}
GIB = 12  # of memory for a comparison at a great length
MUTANTS, MUTANT_MINUTES = 240, 2.5


def jobs(share: float, mutants: int) -> Iterator[dict[str, Any]]:
    """Every job, in an order that gives each campaign its figure before one of them is complete."""
    from fuzzing import TARGETS
    from guided import GUIDED
    from lengths import directions
    from test_flat import BOUNDED

    from weft.mixers import MIXERS

    def some(count: float) -> int:
        return max(int(count * share), 1)

    for seed in range(4):
        yield {"kind": "kills", "name": "recorded", "count": some(25), "seed": seed}
    for name in ["steps", "generations", *BOUNDED]:
        yield {"kind": "flat", "name": name, "tokens": some(1e5), "steps": some(1e4)}
    for seed in range(2):
        yield {"kind": "sanitized", "inputs": some(150_000), "seed": seed}
    # A seed of everything first, so that what is cut short misses seeds and not campaigns.
    for seed in range(6):
        for name in TARGETS:
            yield {"kind": "fuzz", "name": name, "inputs": some(10_000), "seed": seed}
        for name in GUIDED:
            yield {"kind": "guided", "name": name, "inputs": some(8_000), "seed": seed + 1}
        yield {"kind": "forwards", "count": some(1500), "seed": seed}
    for name in MIXERS:
        for causal in directions(name):
            yield {"kind": "lengths", "name": name, "causal": causal, "length": some(65536)}
    for number in range(mutants):
        yield {"kind": "mutant", "number": number}


def missing() -> dict[str, str]:
    """The kinds that this machine cannot run, and why."""
    found = {}
    try:
        import atheris  # noqa: F401
    except ImportError as error:
        found["guided"] = f"atheris: {error}"
    from weft import native

    found |= {"sanitized": why} if (why := _no_sanitizers()) else {}
    if (why := native.available()) is not None:
        found |= {"native configs": why, "native files": why}
    from readers import absent

    found |= absent()
    import torch

    if not torch.cuda.is_available():
        found["kills"] = "recorded updates need a CUDA device"
    if importlib.util.find_spec("pytest") is None:
        found["mutant"] = found["flat"] = "pytest is not installed"
    return found


def _no_sanitizers() -> str:
    import sanitized

    from weft.native import build

    compiler = build.find_compiler()
    if compiler is None:
        return "there is no C++ compiler"
    with tempfile.TemporaryDirectory() as folder:
        try:
            sanitized.variables(Path(folder), compiler)
        except (OSError, subprocess.CalledProcessError) as error:
            return f"no sanitizers: {error}"
    return ""


def flat(name: str, tokens: int, steps: int) -> dict[str, Any]:
    """Memory and handles over many tokens or steps."""
    tests = {
        "generations": "test_many_generations_leave_nothing_behind",
        "steps": "test_training_steps_leave_nothing_behind",
    }
    test = tests.get(name, f"test_decoding_does_not_grow[{name}]")
    variables = {"WEFT_LONG_TOKENS": str(tokens), "WEFT_LONG_STEPS": str(steps)}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "long", "-p", "no:cacheprovider"]
    command += ["-W", "ignore", f"tests/campaigns/test_flat.py::{test}"]
    done = _run(command, variables)
    return {"passed": done.returncode == 0, "problem": "" if not done.returncode else _tail(done)}


def kills(name: str, count: int, seed: int) -> dict[str, Any]:
    """Trainings of a kind, killed at random moments."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HOME / "kills.py"), f"{folder}/runs", "--kind", name]
        done = _run([*command, "--kills", str(count), "--seed", str(seed)], {})
    return {"said": done.stdout.strip(), "problem": _tail(done) if done.returncode else ""}


def sanitized(inputs: int, seed: int) -> dict[str, Any]:
    """The native reader under sanitizers."""
    import sanitized as campaign

    status, said = campaign.run(inputs, seed)
    return {"said": said.strip(), "problem": said if status else ""}


def lengths(name: str, causal: bool, length: int) -> dict[str, Any]:
    """A mechanism at great lengths."""
    import resource

    from lengths import compared

    resource.setrlimit(resource.RLIMIT_AS, (GIB * 2**30, GIB * 2**30))
    return compared(name, causal, max(length, 1024), 150)


def fuzz(name: str, inputs: int, seed: int) -> dict[str, Any]:
    """Seeded inputs of a reader."""
    import fuzzing

    return vars(fuzzing.fuzz(fuzzing.TARGETS[name](), inputs, seed))


def guided(name: str, inputs: int, seed: int) -> dict[str, Any]:
    """Inputs of a reader that coverage guides."""
    import guided as campaign

    return campaign.in_child(name, inputs, seed)


def forwards(count: int, seed: int) -> dict[str, Any]:
    """Random forwards of random mechanisms."""
    import forwards as campaign
    import torch

    torch.set_num_threads(1)
    return campaign.campaign(count, seed)


def mutant(number: int) -> dict[str, Any]:
    """One mutant of the source against the tests near it."""
    import mutants as campaign

    # Drawn once, by the process that runs the jobs: reading all of the source takes seconds.
    chosen = pickle.loads(Path(os.environ["WEFT_MUTANTS"]).read_bytes())[number]
    with tempfile.TemporaryDirectory(prefix="weft-mutant-") as scratch:
        shared = Path(os.environ["WEFT_BROKEN_TESTS"])
        known = set(shared.read_text().splitlines()) if shared.exists() else set()
        tree = campaign.Tree.copied(Path(scratch) / "tree", MUTANT_MINUTES)
        tree.broken |= known
        row = {**chosen.row, **tree.verdict(chosen)}
        with shared.open("a") as file:
            file.write("".join(f"{name}\n" for name in sorted(tree.broken - known)))
    return row


KINDS: dict[str, Callable[..., dict[str, Any]]] = {
    made.__name__: made
    for made in (flat, kills, sanitized, lengths, fuzz, guided, forwards, mutant)
}


def _run(command: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, **variables}
    return subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True)


def _tail(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stdout[-600:] + done.stderr[-600:]).strip()


def draw_mutants(path: Path, count: int) -> None:
    """Leave the mutants for the processes that run them."""
    import mutants as campaign

    path.write_bytes(pickle.dumps([*itertools.islice(campaign.sampled("src/weft", 0), count)]))


@dataclass
class Runner:
    """Runs jobs side by side until the time is over."""

    out: Path
    most: int
    seconds: float
    scratch: Path  # for what passes between processes
    running: dict[subprocess.Popen, tuple[dict, float]] = field(default_factory=dict)
    rows: list[dict] = field(default_factory=list)

    def run(self, waiting: list[dict]) -> int:
        """How many were left."""
        end = time.monotonic() + self.seconds
        while (waiting or self.running) and time.monotonic() < end:
            self.collect()
            while len(self.running) < self.most and (job := self.next_of(waiting)):
                self.begin(job)
            time.sleep(0.05)
        self.collect()
        for process, (job, _) in self.running.items():
            print(f"not ended: {key(job)}", flush=True)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return len(waiting) + len(self.running)

    def next_of(self, waiting: list[dict]) -> dict | None:
        """The first job whose kind may begin another."""
        now = Counter(job["kind"] for job, _ in self.running.values())
        for at, job in enumerate(waiting):
            if now[job["kind"]] < AT_ONCE.get(job["kind"], self.most):
                return waiting.pop(at)
        return None

    def begin(self, job: dict) -> None:
        """Start the process of a job, in a group of its own."""
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        if job["kind"] != "kills":
            variables["CUDA_VISIBLE_DEVICES"] = ""
        variables["WEFT_MUTANTS"] = str(self.scratch / "mutants.pickle")
        variables["WEFT_BROKEN_TESTS"] = str(self.scratch / "broken_tests.txt")
        command = [sys.executable, "-W", "ignore", str(Path(__file__).resolve())]
        place = self.place(job)
        with place.open("w") as answer, place.with_suffix(".err").open("w") as said:
            process = subprocess.Popen(
                [*command, "--job", json.dumps(job)],
                stdout=answer,
                stderr=said,
                env=variables,
                start_new_session=True,
            )
        self.running[process] = (job, time.monotonic())

    def place(self, job: dict) -> Path:
        """Where a job leaves its answer for the runner."""
        return self.scratch / "-".join(str(x) for x in job.values()).replace(" ", "_")

    def collect(self) -> None:
        """Take the answers of jobs that have ended."""
        for process in [p for p in self.running if p.poll() is not None]:
            job, began = self.running.pop(process)
            place = self.place(job)
            lines = place.read_text().splitlines()
            found = {"problem": f"status {process.returncode}"}
            if process.returncode == 0 and lines:
                found = json.loads(lines[-1])
            else:
                found["problem"] += ": " + place.with_suffix(".err").read_text()[-800:]
            row = {"job": job, "wall": round(time.monotonic() - began, 1), **found}
            self.rows.append(row)
            with (self.out / "trust.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
            for old in (place, place.with_suffix(".err")):
                old.unlink()
            print(f"{row['wall']:6.1f} s  {key(job)}  {verdict(row)[:300]}", flush=True)


def key(job: dict) -> str:
    """What names a job."""
    return json.dumps(job, sort_keys=True)


def verdict(row: dict) -> str:
    """A word about a row: a finding, or that it is well."""
    if row.get("problem"):
        return f"PROBLEM {row['problem']}"
    if row.get("raw") or row.get("broken"):
        return f"FOUND {row.get('raw') or row['broken']}"
    if row["job"]["kind"] == "mutant" and not row["caught"]:
        return f"{'SURVIVED' if row['sound'] else 'LEFT OUT'} {row['path']}:{row['line']}"
    if row["job"]["kind"] == "lengths":
        return f"{row['length']} tokens, {row['truth']} {row.get('stopped', '')}"
    return "ok"


def summary(rows: list[dict]) -> Iterator[str]:
    """The figures of all rows, a line for each campaign."""
    by_kind: dict[str, list[dict]] = {}
    for row in rows:
        by_kind.setdefault(row["job"]["kind"], []).append(row)
    for kind, found in by_kind.items():
        bad = sum(bool(r.get("problem") or r.get("raw") or r.get("broken")) for r in found)
        line = f"{kind}: {len(found)} jobs, {bad} with findings"
        if kind in ("fuzz", "guided"):
            inputs, slowest = (
                sum(r["inputs"] for r in found if "inputs" in r),
                _most(found, "slowest"),
            )
            peak = _most(found, "peak") / 2**20
            accepted = sum(r.get("accepted", 0) for r in found)
            line += f"; {inputs:,} inputs, {accepted:,} accepted, slowest {slowest:.2f} s"
            line += f", {peak:,.0f} MiB"
        if kind == "mutant":
            sound = [r for r in found if r.get("sound")]
            caught = sum(r["caught"] for r in sound)
            line += f"; {caught} of {len(sound)} caught"
        if kind == "forwards":
            line += f"; {sum(r.get('forwards', 0) for r in found):,} forwards"
        if kind == "lengths":
            reached = Counter(r.get("length", 0) for r in found)
            line += f"; {dict(sorted(reached.items()))} mechanisms by length"
        yield line


def _most(rows: list[dict], name: str) -> float:
    return max((r.get(name, 0) for r in rows), default=0)


def read(path: Path) -> list[dict]:
    """Rows of a file, none if there is none."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> int:
    """Run what is not known yet; print the figures of all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--jobs", type=int, default=13)
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--known", type=Path, action="append", default=[])
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--mutants", type=int, default=MUTANTS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        job = json.loads(given.job)
        answer = KINDS[job.pop("kind")](**job)
        print(json.dumps(answer), flush=True)
        return 0
    began = time.monotonic()
    given.out.mkdir(parents=True, exist_ok=True)
    known = [row for path in (*given.known, given.out / "trust.jsonl") for row in read(path)]
    done, cannot = {key(row["job"]) for row in known}, missing()
    for kind, why in cannot.items():
        print(f"left out: {kind}, {why}", flush=True)
    waiting = [
        job
        for job in jobs(given.share, given.mutants)
        if key(job) not in done
        and (not given.kind or job["kind"] in given.kind)
        and job["kind"] not in cannot
        and job.get("name") not in cannot
    ]
    with tempfile.TemporaryDirectory(prefix="weft-trust-") as scratch:
        if any(job["kind"] == "mutant" for job in waiting):
            draw_mutants(Path(scratch) / "mutants.pickle", given.mutants)
        seconds = given.seconds - (time.monotonic() - began)
        runner = Runner(given.out, given.jobs, seconds, Path(scratch))
        left = runner.run(waiting)
    for line in summary([*known, *runner.rows]):
        print(line, flush=True)
    print(f"{left} jobs left", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
