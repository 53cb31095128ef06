"""What goes wrong in a first hour gets words, and early. Each was a traceback or a silence once."""

import csv

import pytest
from typer.testing import CliRunner

from weft.cli import app

run = CliRunner().invoke


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        labels = ["a", "b", "a", "b", "a", "b", "a", "b", "a", "nan"]
        writer.writerows([f"row {i} {labels[i % 10]}", labels[i % 10]] for i in range(100))
    return path


@pytest.mark.parametrize("verb", ["train", "compare", "ablate"])
def test_a_file_is_no_folder(tmp_path, verb):
    place = tmp_path / "taken"
    place.write_text("")
    data = ["--data", str(tmp_path / "never_read.csv")]
    call = {"train": data, "compare": [*data, "--mixers", "full"], "ablate": ["ablate_small"]}
    done = run(app, [verb, *call[verb], "--out", str(place)])
    assert done.exit_code == 1
    assert "is a file; give another folder" in " ".join(done.output.split())
    below = run(app, [verb, *call[verb], "--out", str(place / "below")])
    assert "is a file; give another folder" in " ".join(below.output.split())


def test_missing_mixers_are_noticed_before_the_data_is_read(tmp_path):
    done = run(app, ["compare", "--data", "never_read.csv", "--out", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert "say which mechanisms" in done.output


def test_nan_is_no_class(table, tmp_path):
    from weft.arena.tasks.table.task import Table

    found = Table(data=str(table)).prepared
    assert found.names == ("a", "b")
    assert "missing label in 'label': 'nan'" in str(found.bad[0])


@pytest.mark.parametrize(("verb", "words"), [("ablate", "[[modification]]s")])
def test_help_keeps_its_brackets(verb, words):
    assert words in run(app, [verb, "--help"]).output


def test_a_value_of_the_wrong_kind_is_named():
    done = run(app, ["pattern", "sliding(abc)", "--length", "64"])
    assert done.exit_code == 1
    from weft.errors import WeftError
    from weft.mixers import MIXERS

    with pytest.raises(WeftError, match=r"longformer.window is a whole number.*; got abc"):
        MIXERS.parse("longformer(window=abc)")


def test_tabs_separate_a_txt(tmp_path):
    from weft.arena.tasks.table.task import Table

    path = tmp_path / "table.txt"
    rows = [f"row {i}\t{'yes' if i % 2 else 'no'}" for i in range(60)]
    path.write_text("\n".join(["text\tlabel", *rows]) + "\n")
    assert Table(data=str(path)).class_names == ("no", "yes")
