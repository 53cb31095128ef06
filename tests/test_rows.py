"""Result files: appended to, never lost, never half-read."""

import json
import os
import subprocess
import sys
import time

import pytest

from weft.errors import WeftError
from weft.report import append, read

ROWS = [{"case": "full", "length": 8, "median_s": 0.25, "error": None, "graph": False}]


def test_rows_come_back_in_order(tmp_path):
    path = tmp_path / "new folder" / "rows.jsonl"
    append(path, ROWS)
    append(path, [{"case": "größer"}, {"case": "b"}])
    append(path, [])
    assert read(path) == [*ROWS, {"case": "größer"}, {"case": "b"}]
    assert [json.loads(line) for line in path.read_text().splitlines()] == read(path)


@pytest.mark.parametrize("torn", ['{"case": "ha', "x" * 200_000])
def test_a_torn_line_is_no_row(tmp_path, torn):
    path = tmp_path / "rows.jsonl"
    append(path, ROWS)
    with path.open("a") as file:
        file.write(torn)
    assert read(path) == ROWS
    append(path, ROWS)
    assert read(path) == ROWS + ROWS
    assert torn not in path.read_text()


def test_a_file_that_is_torn_from_the_start(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"case"')
    assert read(path) == []
    append(path, ROWS)
    assert read(path) == ROWS


def test_a_broken_line_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"case": 1}\n\nnot json\n')
    with pytest.raises(WeftError, match=r"rows\.jsonl, line 3: not JSON; got b'not json'"):
        read(path)
    path.write_text("[1]\n")
    with pytest.raises(WeftError, match="line 1: a row is a JSON object"):
        read(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(WeftError, match=r"there is no result file .*nothing\.jsonl"):
        read(tmp_path / "nothing.jsonl")


@pytest.mark.parametrize("value", [[1], {"a": 1}, (1, 2), {1}], ids=str)
def test_rows_are_flat(tmp_path, value):
    path = tmp_path / "rows.jsonl"
    with pytest.raises(WeftError, match=r"a row is flat.*got settings="):
        append(path, [*ROWS, {"settings": value}])
    assert not path.exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_rows_hold_no_nan(tmp_path, value):
    with pytest.raises(WeftError, match="no NaN and no infinity; use None"):
        append(tmp_path / "rows.jsonl", [{"loss": value}])


def test_several_programs_share_a_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    program = (
        "import sys; from weft.rows import append\n"
        "for at in range(100): append(sys.argv[1], [{'who': sys.argv[2], 'at': at}])"
    )
    command = [sys.executable, "-c", program, os.fspath(path)]
    started = [subprocess.Popen([*command, who]) for who in "ab"]
    assert [one.wait() for one in started] == [0, 0]
    rows = read(path)
    for who in "ab":
        assert [row["at"] for row in rows if row["who"] == who] == list(range(100))


def test_a_writer_waits_for_the_other(tmp_path):
    fcntl = pytest.importorskip("fcntl", reason="files are locked on POSIX systems")
    path = tmp_path / "rows.jsonl"
    program = (
        "import sys; from weft.rows import append\n"
        "print('ready', flush=True); append(sys.argv[1], [{'who': 'child'}])"
    )
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        command = [sys.executable, "-c", program, os.fspath(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout.readline() == "ready\n"
            time.sleep(0.5)
            assert read(path) == []
            fcntl.flock(file, fcntl.LOCK_UN)
            assert child.wait() == 0
    assert read(path) == [{"who": "child"}]


def test_a_report_loads_no_torch():
    program = "import sys, weft.report; print('torch' in sys.modules, 'rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"], done.stderr
