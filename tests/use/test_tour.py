"""The tour: one source for the verb and the notebook, whose cells run."""

import json
from pathlib import Path

import pytest

from weft.errors import WeftError
from weft.use import tour as module

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "tour.ipynb"


def test_the_notebook_is_the_tour():
    assert NOTEBOOK.read_text(encoding="utf-8") == module.notebook(), "run: python docs/generate.py"


def test_the_tour_leads_through_the_verbs():
    code = "\n".join(cell.code for cell in module.CELLS)
    for verb in ("pattern", "bench", "compare", "train", "predict", "generate"):
        assert f"weft {verb}" in code
    for number, cell in enumerate(module.CELLS):
        compile(cell.code, f"cell {number}", "exec")


def test_a_tour_goes_on_where_it_was(tmp_path, monkeypatch):
    cells = (
        module.TourCell(
            "one",
            "",
            "def run(line):\n    with open('ran', 'a') as file:\n        file.write(line + ' ')",
            "x = 1",
        ),
        module.TourCell("two", "", "y = 2", "run('two')"),
        module.TourCell("three", "", "", "run('three')\nassert y == 2 and fine()"),
    )
    monkeypatch.setattr(module, "CELLS", cells)
    with pytest.raises(WeftError, match="step 3 of the tour, three, failed"):
        module.tour(tmp_path / "tour", lambda text: None)
    assert (tmp_path / "tour" / "ran").read_text() == "two three "
    monkeypatch.setattr(module, "CELLS", (*cells[:2], cells[2]._replace(work="run('four')")))
    module.tour(tmp_path / "tour", lambda text: None)
    assert (tmp_path / "tour" / "ran").read_text() == "two three four "


def test_a_folder_of_others_is_refused(tmp_path):
    (tmp_path / "mine").write_text("work")
    with pytest.raises(WeftError, match="holds other files"):
        module.tour(tmp_path)


@pytest.mark.long
def test_the_cells_of_the_notebook_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert (tmp_path / "runs" / "compare" / "report.html").is_file()
    assert len((tmp_path / "predicted.csv").read_text().splitlines()) == 21
