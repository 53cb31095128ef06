"""The package: a wheel, installed into an empty environment, without the tree or a compiler."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import weft

ROOT = Path(__file__).resolve().parents[1]
OPTIONAL = ("matplotlib", "pyarrow", "tokenizers", "numba", "transformers", "onnx", "triton")
CHECK = """
import importlib.util, sys
import weft
assert "site-packages" in weft.__file__, weft.__file__
{program}
"""


def build(folder):
    """The wheel of this tree; pip gets hatchling where it is not there."""
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "-w", str(folder)]
    done = subprocess.run([*command, str(ROOT)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"pip cannot build here: {done.stderr.strip().splitlines()[-1]}")
    (wheel,) = folder.glob("weft-*.whl")
    return wheel


def files_that_are_not_python():
    source = ROOT / "src"
    found = (path for path in source.rglob("*") if path.is_file() and path.suffix != ".py")
    return {
        path.relative_to(source).as_posix()
        for path in found
        if "__pycache__" not in path.parts and ".egg-info" not in str(path)
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """An empty environment with the wheel, and with what pip brings along."""
    place = tmp_path_factory.mktemp("empty") / "env"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True, capture_output=True)
    python = place / "bin" / "python"
    command = [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"pip cannot install here: {done.stderr.strip().splitlines()[-1]}")
    return python


def run(python, *args, folder, ok=True):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    clean |= {"CC": "/bin/false", "CXX": "/bin/false"}
    done = subprocess.run(
        [str(python), *args], cwd=folder, env=clean, capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0) == ok, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.long
def test_a_wheel_holds_every_file_that_is_not_python(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert files_that_are_not_python() <= names
    assert "weft/use/measured.json" in names
    assert not [name for name in names if name.startswith(("tests/", "docs/", "benchmarks/"))]


@pytest.mark.long
def test_an_empty_environment_runs_the_readme(environment, tmp_path):
    shown = run(environment, "-m", "weft", "--version", folder=tmp_path)
    assert shown == f"weft {weft.__version__}\n"
    assert "longformer" in run(environment, "-m", "weft", "mixers", folder=tmp_path)
    command = ("advise", "--length", "16384", "--causal")
    assert "sliding_window" in run(environment, "-m", "weft", *command, folder=tmp_path)
    program = re.search(
        r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    code = CHECK.format(program=program.group(1))
    assert "numbers remembered" in run(environment, "-c", code, folder=tmp_path)


@pytest.mark.long
def test_optional_packages_that_are_missing_are_named(environment, tmp_path):
    there = run(
        environment, "-c",
        f"from importlib.util import find_spec; print([p for p in {OPTIONAL} if find_spec(p)])",
        folder=tmp_path,
    )  # fmt: skip
    assert there.strip() in ("[]", "['triton']"), there  # torch brings triton where it has a GPU
    picture = ("pattern", "sliding(4)", "--length", "64", "--png", "a.png")
    shown = run(environment, "-m", "weft", *picture, folder=tmp_path, ok=False)
    assert "pip install matplotlib" in shown
    assert "Traceback" not in shown
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    table = ("train", "--data", "a.parquet", "--out", "run")
    shown = run(environment, "-m", "weft", *table, folder=tmp_path, ok=False)
    assert "pyarrow" in shown
    assert "Traceback" not in shown
