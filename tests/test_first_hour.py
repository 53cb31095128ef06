"""Every line of the README's first hour runs as written, in order, in an empty folder."""

import csv
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
    with (tmp_path / "reviews.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["book", "body", "stars"]
    assert len({row["body"] for row in rows}) == 800  # so that --group book can split them


def test_files_that_are_there_are_not_replaced(tmp_path):
    (tmp_path / "new.csv").write_text("mine")
    done = CliRunner().invoke(app, ["example-data", "--into", str(tmp_path)])
    assert done.exit_code == 1
    assert "new.csv is there already" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["new.csv"]


@pytest.mark.long
def test_the_first_hour():
    first_hour.main()
