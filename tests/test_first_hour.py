"""Every line of the README's first hour runs as written, in order, in an empty folder."""

import shlex

import pytest
from typer.testing import CliRunner

import first_hour
from weft.cli import app


def test_the_quick_lines_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = [args for args, _ in first_hour.readme(first_hour.QUICK)]
    assert [args[1] for args in told] == list(first_hour.QUICK)
    for args in told:
        done = CliRunner().invoke(app, args[1:])
        assert done.exit_code == 0, f"{shlex.join(args)}\n{done.output}"
    header, *rows = (tmp_path / "reviews.csv").read_text().splitlines()
    assert header == "book,body,stars"
    assert len(rows) == 800


def test_files_that_are_there_are_not_replaced(tmp_path):
    (tmp_path / "new.csv").write_text("mine")
    done = CliRunner().invoke(app, ["example-data", "--into", str(tmp_path)])
    assert done.exit_code == 1
    assert "new.csv is there already" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["new.csv"]


@pytest.mark.long
def test_the_first_hour():
    first_hour.main()
