"""`weft report`: writes, says where, and refuses what is no run."""

import pytest
import typer
from run_folders import cell, write_rows
from typer.testing import CliRunner

from weft.cli import app

run = CliRunner().invoke


@pytest.fixture
def folder(tmp_path):
    return write_rows(tmp_path / "run", [cell("full", 512), cell("fnet", 512)])


def test_it_writes_both_forms(folder):
    done = run(app, ["report", str(folder)])
    assert done.exit_code == 0, done.output
    assert (folder / "report.html").is_file()
    assert (folder / "report.md").is_file()
    assert f"wrote {folder / 'report.html'}" in done.output.replace("\n", "")


def test_it_opens_the_page(folder, monkeypatch):
    opened = []
    monkeypatch.setattr(typer, "launch", opened.append)
    assert run(app, ["report", str(folder)]).exit_code == 0
    assert opened == []
    run(app, ["report", str(folder), "--open", "--out", str(folder / "a.html")])
    assert opened == [str(folder / "a.html")]


def test_no_run(tmp_path):
    done = run(app, ["report", str(tmp_path)])
    assert done.exit_code == 1
    assert done.output.startswith("error: ")
    assert "is not a run folder" in done.output
