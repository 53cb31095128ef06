"""A tour of weft in about ten minutes: pattern, bench, compare, train, predict, generate.

One source, CELLS, for `weft tour`, which runs them one after another in a folder, and for the
notebook docs/tour.ipynb, which docs/generate.py writes and a test executes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from weft.errors import WeftError

NOTES = "tour.json"  # in the folder of a tour: how many cells are done


class TourCell(NamedTuple):
    """A heading with a few words, names that later cells need as well, and the work."""

    title: str
    words: str
    setup: str
    work: str

    @property
    def code(self) -> str:
        """The whole program."""
        return "\n\n".join(part.strip() for part in (self.setup, self.work) if part)


CELLS = (
    TourCell(
        "Start",
        "A line of the command line, run from Python, and small files to work on.",
        """import shlex
import subprocess
import sys


def run(line):
    '''A line of the command line.'''
    program = [sys.executable, "-m", *shlex.split(line)]
    done = subprocess.run(program, capture_output=True, text=True)
    print(done.stdout + (done.stderr if done.returncode else ""))
    assert done.returncode == 0, line""",
        'run("weft example-data")',
    ),
    TourCell(
        "Pattern",
        "Say which token may read which. Density, cost, decoding state and the picture follow.",
        "import pathlib\n\nimport weft",
        """pattern = weft.Causal() & (weft.Sliding(256) | weft.Global(first=4))
print(pattern)
run(f"weft pattern '{pattern}' --length 4096")""",
    ),
    TourCell(
        "Bench",
        "What that saves on this machine: a layer beside dense attention. A case that does not "
        "equal its equation gets no number.",
        "",
        """run("weft bench attention --lengths 2048,4096 --causal --heads 2 --rounds 3"
    " --mixers 'sliding_window(window=256),linear_transformer'")
run("weft advise --length 4096 --causal")""",
    ),
    TourCell(
        "Compare",
        "Speed is half of the answer. Train several on the same rows, dense attention among them; "
        "runs/compare/report.html shows it all.",
        """small = "--set model.layers=1 --set model.dim=32 --set training.lr=1e-2"
table = "--data reviews.csv --text body --label stars"
""",
        """run(f"weft compare {table} {small} --steps 60 --out runs/compare"
    " --mixers 'full,sliding_window(window=33),linear_transformer'")""",
    ),
    TourCell(
        "Train",
        "Train the one you choose. Stopped at any moment, the same line goes on.",
        "",
        """run(f"weft train {table} {small} --steps 80 --out runs/stars"
    " --mixer 'sliding_window(window=33)'")
run("weft show runs/stars")""",
    ),
    TourCell(
        "Predict",
        "Use it: a file on the command line, texts in Python; both give the same numbers.",
        "",
        """run("weft predict runs/stars new.csv --proba --out predicted.csv")
print(pathlib.Path("predicted.csv").read_text()[:400])
print(weft.load("runs/stars").predict(["A waste of time.", "Worth every page."], proba=True))""",
    ),
    TourCell(
        "Generate",
        "A language model of bytes, from a settings file, and some bytes of it. It was trained for "
        "a minute, and reads like it.",
        "",
        """run("weft train bytes.toml")
run("weft generate runs/bytes --prompt 'def main(' --max-new-tokens 80")""",
    ),
)


def tour(folder: str | Path, told: Callable[[str], None] = print) -> None:
    """Run the cells in a folder; a tour that was stopped goes on at the cell where it was."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    notes = folder / NOTES
    if not notes.exists() and any(folder.iterdir()):
        raise WeftError(f"{folder} holds other files; give the tour a folder of its own: --into")
    done = json.loads(notes.read_text()) if notes.exists() else 0
    setup = ""
    for place, cell in enumerate(CELLS):
        setup += cell.setup.strip() + "\n"
        told(f"\n{place + 1}. {cell.title}\n{cell.words}\n")
        if place < done:
            told("(done before)")
            continue
        told("    " + cell.code.replace("\n", "\n    ") + "\n")
        ended = subprocess.run([sys.executable, "-c", setup + cell.work], cwd=folder, check=False)
        if ended.returncode:
            raise WeftError(f"step {place + 1} of the tour, {cell.title}, failed; see above")
        notes.write_text(json.dumps(place + 1))
    told(f"the files are in {folder}; the same cells are the notebook docs/tour.ipynb")


def notebook() -> str:
    """The cells as a Jupyter notebook."""
    cells: list[dict[str, Any]] = [_markdown("# A tour of weft\n\nAbout ten minutes on two cores.")]
    for cell in CELLS:
        cells.append(_markdown(f"## {cell.title}\n\n{cell.words}"))
        source = cell.code.splitlines(keepends=True)
        cells.append({"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [],
                      "source": source})  # fmt: skip
    for number, each in enumerate(cells):
        each["id"] = f"tour-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    found = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _markdown(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": text.splitlines(keepends=True)}
