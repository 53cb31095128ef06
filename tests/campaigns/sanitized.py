"""The C++ reader and its kernels under sanitizers: `fuzz_native.cpp`, compiled and run.

python tests/campaigns/sanitized.py --inputs 1000000 --seed 1
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from fuzzing import _native_folder

from weft.native import build

FLAGS = ("-std=c++17", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def compiled(folder: Path, compiler: str) -> Path:
    """The driver and every source of the library but its C interface."""
    jobs = []
    for source in [
        *sorted(build.SOURCES.glob("*.cpp")),
        Path(__file__).with_name("fuzz_native.cpp"),
    ]:
        if source.name == "kernels.cpp":
            levels = build._LEVELS.get(platform.machine(), {"portable": ()})
            jobs += [
                [*extra, f"-DWEFT_LEVEL={level}", str(source), "-o", f"{folder}/{level}.o"]
                for level, extra in levels.items()
            ]
        elif source.name != "api.cpp":
            jobs.append([str(source), "-o", f"{folder}/{source.stem}.o"])
    for job in jobs:
        command = [compiler, *FLAGS, "-Wno-psabi", f"-I{build.SOURCES}", "-c", *job]
        subprocess.run(command, check=True)
    made = folder / "fuzz_native"
    objects = [job[-1] for job in jobs]
    subprocess.run([compiler, *FLAGS, "-pthread", *objects, "-o", str(made)], check=True)
    return made


def variables(folder: Path, compiler: str) -> dict[str, str]:
    """The environment of a sanitized program; leaks are left out where they cannot be looked for.

    A tracer is needed for them, which some containers refuse.
    """
    source = folder / "nothing.cpp"
    source.write_text("int main() {}\n")
    made = folder / "nothing"
    subprocess.run([compiler, *FLAGS, str(source), "-o", str(made)], check=True)
    for given in ({}, {"ASAN_OPTIONS": "detect_leaks=0"}):
        done = subprocess.run([str(made)], env={**os.environ, **given}, capture_output=True)
        if done.returncode == 0:
            return given
    raise OSError(f"a program under sanitizers does not run here: {done.stderr[-300:]!r}")


def run(inputs: int, seed: int, seconds: float = 3000) -> tuple[int, str]:
    """The status of the driver and what it said; anything but 0 is a finding."""
    compiler = build.find_compiler()
    assert compiler is not None, "a C++ compiler is needed"
    with tempfile.TemporaryDirectory() as folder:
        driver = compiled(Path(folder), compiler)
        command = [str(driver), str(_native_folder() / "model.weft"), str(inputs), str(seed)]
        given = {**os.environ, **variables(Path(folder), compiler)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=given)
    return done.returncode, done.stdout + done.stderr[-3000:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    status, said = run(given.inputs, given.seed)
    print(said.strip())
    return status


if __name__ == "__main__":
    sys.exit(main())
