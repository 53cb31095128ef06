"""`weft new`: the files it writes work, pass the public checks, and replace nothing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from weft.cli import app
from weft.cli.make.new import Kind, rendered, write
from weft.errors import WeftError

ROOT = Path(__file__).resolve().parents[2]
run = CliRunner().invoke


def pytest_in(folder, *args):
    """pytest over a folder, in a process of its own: its parts register names."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *args, "."],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


def test_everything_that_is_written_passes_its_tests(tmp_path):
    for kind in Kind:
        done = run(app, ["new", kind.value, f"my_{kind.value}", "--into", str(tmp_path)])
        assert done.exit_code == 0, done.output
        assert f"--plugin my_{kind.value}" in done.output
    names = {f"my_{kind.value}.py" for kind in Kind} | {f"test_my_{kind.value}.py" for kind in Kind}
    assert {path.name for path in tmp_path.iterdir()} == {*names, "my_mixer.md"}
    done = pytest_in(tmp_path)
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout).group(1)) > 50


def test_the_tests_that_are_written_bite(tmp_path):
    """A gate that acts one token late in `mix`, and not in the equation."""
    source = write("mixer", "my_mixer", tmp_path)[0]
    text = source.read_text()
    spoiled = text.replace("(1 - gate) * new, h)", "(1 - gate).roll(1, 1) * new, h)")
    assert spoiled != text
    source.write_text(spoiled)
    done = pytest_in(tmp_path, "-k", "reference")
    assert done.returncode == 1
    assert "forward and reference" in done.stdout


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "test_mine.py").write_text("precious")
    with pytest.raises(WeftError, match=r"test_mine\.py is there already"):
        write("mixer", "mine", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"test_mine.py"}
    assert (tmp_path / "test_mine.py").read_text() == "precious"


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("mixer", "My-Mixer", "small letters"),
        ("mixer", "../up", "small letters"),
        ("mixer", "class", "small letters"),
        ("mixer", "longformer", "a mixer named 'longformer' already"),
        ("task", "listops", "a task named 'listops' already"),
        ("pattern", "json", "a module named 'json' already"),
    ],
)
def test_names_that_cannot_be(tmp_path, kind, name, message):
    done = run(app, ["new", kind, name, "--into", str(tmp_path)])
    assert done.exit_code == 1
    assert message in done.output
    assert not list(tmp_path.iterdir())


def test_the_page_of_mechanisms_shows_what_is_written():
    page = (ROOT / "docs/how-to/add-a-mechanism.md").read_text()
    assert f"```python\n{rendered('mixer', 'gated_mean')['gated_mean.py']}```" in page
