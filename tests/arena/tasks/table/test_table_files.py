"""Readers agree on one table, name the lines of what is broken, and leave files alone."""

import bz2
import gzip
import json
import lzma
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_files_made import KINDS, csv_text, json_text, parquet_file, write

from weft.arena.tasks.table import unpacking
from weft.arena.tasks.table.files import read_table
from weft.arena.tasks.table.numbers import standard
from weft.arena.tasks.table.splits import TRAIN
from weft.errors import WeftError

NAMES = ("id", "body", "stars")
ROWS = [
    (1, "plain", 5),
    (2, 'quotes " and, commas; tabs\tbars | too', 1),
    (3, "two\nlines", 2),
    (4, "  spaces kept  ", 3),
    (5, "Grüße, 世界, 🙂", 4),
    (6, "x" * 200_000, 5),
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_reader_reads_the_same_table(tmp_path, kind):
    path = write(tmp_path, kind, NAMES, ROWS)
    before = path.read_bytes(), path.stat().st_mtime_ns
    found = read_table(path, ["stars", "body"])
    assert found.columns["body"] == [row[1] for row in ROWS]
    assert [int(value) for value in found.columns["stars"]] == [row[2] for row in ROWS]
    assert found.bad == []
    lines = [2, 3, 4, 6, 7, 8] if "csv" in kind or "tsv" in kind else [1, 2, 3, 4, 5, 6]
    assert found.lines == lines
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


texts = st.text(st.characters(codec="utf-8", exclude_characters="\r\x00"), max_size=20)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(texts, st.integers(0, 9)), min_size=1, max_size=8))
def test_any_text_survives(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("any")
    names = ("body", "stars")
    starts, line = [], 2
    for body, _ in rows:
        starts.append(line)
        line += 1 + body.count("\n")
    for kind, lines in ((".csv", starts), (".jsonl", list(range(1, len(rows) + 1)))):
        found = read_table(write(folder, kind, names, rows), names)
        assert found.columns["body"] == [body for body, _ in rows]
        assert (found.lines, found.bad) == (lines, [])


HEAD = "id,body,stars\n"
BROKEN_CSV = {
    "a column too few": (HEAD + "1,a,5\n2,b\n3,c,1\n", [(3, "columns: 2 instead of 3")]),
    "a column too many": (HEAD + "1,a,5,\n2,b,4\n", [(2, "columns: 4 instead of 3")]),
    "an unquoted comma": (HEAD + "1,a,b,5\n2,b,4\n", [(2, "columns: 4 instead of 3")]),
    "text after a quote": (HEAD + '1,"a"b,5\n2,c,4\n', [(2, "broken CSV")]),
    "a quote never closed": (HEAD + '1,a,5\n2,"b,4\n3,c,1\n4,d,2\n', [(3, "up to line 5")]),
    "cut in the middle": (HEAD + '1,a,5\n2,"bb\ncc', [(3, "broken CSV")]),
    "a quote closed in a later row": (
        HEAD + '1,"a,5\n2,"b",4\n3,c,1\n',
        [(2, "broken CSV")],
    ),
    "after a text of two lines": (HEAD + '1,"a\nb",5\n2,b\n', [(4, "columns: 2")]),
    "blank lines are no rows": (HEAD + "\n1,a,5\n\n2,b,3\n\n", []),
    "windows line ends": (HEAD.replace("\n", "\r\n") + "1,a,5\r\n2,b\r\n", [(3, "columns: 2")]),
}


@pytest.mark.parametrize("name", BROKEN_CSV)
def test_broken_csv_names_its_lines(tmp_path, name):
    text, expected = BROKEN_CSV[name]
    path = tmp_path / "broken.csv"
    path.write_bytes(text.encode())
    found = read_table(path, ["body", "stars"])
    assert [row.line for row in found.bad] == [line for line, _ in expected]
    for row, (_, reason) in zip(found.bad, expected, strict=True):
        assert reason in row.reason
        assert str(row).startswith(f"broken.csv, line {row.line}: ")


def test_an_open_quote_counts_the_lines_it_swallows(tmp_path):
    path = tmp_path / "open.csv"
    path.write_text(HEAD + '1,a,5\n2,"b,4\n3,c,1\n4,d,2\n')
    (row,) = read_table(path, ["body"]).bad
    assert row.lines == 3


def test_broken_json_names_its_lines(tmp_path):
    path = tmp_path / "broken.jsonl"
    good = json.dumps({"body": "a", "stars": 5})
    deep = "[" * 100_000
    path.write_text(f'{good}\n{{"body": "b"\n\n7\n{good}\n{deep}\n["body"]\n{good[:-1]}')
    found = read_table(path, ["body", "stars"])
    assert found.lines == [1, 5]
    assert [row.line for row in found.bad] == [2, 4, 6, 7, 8]
    reasons = ["invalid JSON", "JSON object", "invalid JSON", "JSON object", "invalid JSON"]
    for row, reason in zip(found.bad, reasons, strict=True):
        assert reason in row.reason


def test_a_key_that_only_some_rows_have_is_empty_in_others(tmp_path):
    path = tmp_path / "some.jsonl"
    path.write_text('{"body": "a"}\n{"body": "b", "stars": 4}\n')
    assert read_table(path, ["body", "stars"]).columns["stars"] == [None, 4]


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_column_suggests_near_ones(tmp_path, kind):
    path = write(tmp_path, kind, NAMES, ROWS[:2])
    with pytest.raises(WeftError, match=r"has no column 'star'; did you mean 'stars'\?"):
        read_table(path, ["body", "star"])


WHOLE_FILES = {
    "empty": ("a.csv", b"", "empty line"),
    "a first line without names": ("a.csv", b"1,2\n", "has no column 'body'"),
    "names with an open quote": ("a.csv", b'body,"stars\n"a, b",1\n', "names that are broken CSV"),
    "the same name twice": ("a.csv", b"body,body,stars\n1,2,3\n", "2 columns 'body'"),
    "utf-16 not said": ("a.csv", "body,stars\na,1\n".encode("utf-16"), "encoding='utf-16'"),
    "an array": ("a.json", b'[{"body": "a", "stars": 1}]', "one JSON array"),
    "an array over lines": ("a.json", b'[\n{"body": "a", "stars": 1}\n]', "one JSON array"),
    "no gzip": ("a.csv.gz", b"body,stars\na,1\n", "cannot be read"),
    "no xz": ("a.csv.xz", b"body,stars\na,1\n", "cannot be read"),
    "a cut archive": ("a.csv.gz", None, "cannot be read"),
    "no parquet": ("a.parquet", b"body,stars\na,1\n", "cannot be read as Parquet"),
    "another ending": ("a.xlsx", b"PK", "told by its name"),
    "no ending": ("table", b"body,stars\na,1\n", "told by its name"),
}


@pytest.mark.parametrize("name", WHOLE_FILES)
def test_files_that_cannot_be_read_at_all(tmp_path, name):
    file, data, reason = WHOLE_FILES[name]
    if data is None:
        whole = write(tmp_path, ".csv.gz", ("body", "stars"), [("a" * 50, i) for i in range(999)])
        data = whole.read_bytes()[:-40]
    (tmp_path / file).write_bytes(data)
    with pytest.raises(WeftError, match=reason):
        read_table(tmp_path / file, ["body", "stars"])


@pytest.mark.parametrize("name", ["a.csv.gz", "a.csv.bz2", "a.csv.xz", "a.jsonl.gz"])
def test_a_small_file_does_not_unpack_to_a_huge_one(tmp_path, monkeypatch, name):
    monkeypatch.setattr(unpacking, "UNPACKED", 2**20)
    pack = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}[
        name[name.rindex(".") :]
    ]
    data = b"body,stars\n" + b"a" * 2**26 + b",1\n"
    (tmp_path / name).write_bytes(pack(data))
    tracemalloc.start()
    try:
        with pytest.raises(WeftError, match="unpacks to over 200 times its size"):
            read_table(tmp_path / name, ["body", "stars"])
        assert tracemalloc.get_traced_memory()[1] < len(data)
    finally:
        tracemalloc.stop()


def test_a_table_that_packs_well_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(unpacking, "UNPACKED", 2**10)
    rows = [(f"the same words in every row, but for {i}", i % 3) for i in range(2000)]
    whole = write(tmp_path, ".csv.gz", ("body", "stars"), rows)
    assert len(read_table(whole, ["body", "stars"]).lines) == 2000


def test_no_file_and_a_folder(tmp_path):
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(WeftError, match="there is no file"):
            read_table(path, ["body"])


def test_encodings(tmp_path):
    path = tmp_path / "a.csv"
    for encoding in ("latin-1", "utf-16", "cp1251"):
        body = "Привет" if encoding != "latin-1" else "Grüße"
        path.write_bytes(csv_text(("body", "stars"), [(body, 1)]).encode(encoding))
        assert read_table(path, ["body"], encoding).columns["body"] == [body]
    with pytest.raises(WeftError, match="no encoding 'utf-99'"):
        read_table(path, ["body"], "utf-99")


def test_the_mark_of_utf_8_is_no_part_of_a_name(tmp_path):
    for kind, text in ((".csv", "body,stars\na,1\n"), (".jsonl", '{"body": "a"}\n')):
        path = tmp_path / f"a{kind}"
        path.write_bytes(b"\xef\xbb\xbf" + text.encode())
        assert read_table(path, ["body"]).columns["body"] == ["a"]


def test_names_with_spaces_around_them(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id, body, stars\n1,a,5\n")
    assert read_table(path, ["body", "stars"]).columns == {"body": ["a"], "stars": ["5"]}


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    path = write(tmp_path, ".parquet", NAMES, ROWS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(WeftError, match=r"pip install pyarrow"):
        read_table(path, ["body"])


def test_parquet_whose_names_do_not_decode(tmp_path):
    path = write(tmp_path, ".parquet", NAMES, ROWS)
    path.write_bytes(path.read_bytes().replace(b"stars", b"st\xe1rs"))
    with pytest.raises(WeftError, match="cannot be read as Parquet: 'utf-8' codec"):
        read_table(path, ["body", "stars"])


def test_parquet_values_keep_their_kinds(tmp_path):
    import pyarrow

    path = tmp_path / "kinds.parquet"
    broken = pyarrow.array([b"ok", b"\xff\xfe"], pyarrow.binary()).cast(
        pyarrow.string(), safe=False
    )
    parquet_file(path, ("body", "flag", "many"), [("a", True, [1]), (None, None, None)])
    found = read_table(path, ["body", "flag", "many"])
    assert found.columns == {"body": ["a", None], "flag": [True, None], "many": [[1], None]}
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"body": broken}), path)
    assert read_table(path, ["body"]).columns["body"] == [b"ok", b"\xff\xfe"]


def test_line_by_line_reading_would_not_pass(tmp_path):
    """The twin: what reads CSV by splitting lines and commas differs on the same table."""
    text = csv_text(NAMES, ROWS)
    naive = [line.split(",") for line in text.splitlines()[1:]]
    assert [row[1] for row in naive] != [row[1] for row in ROWS]
    assert json_text(NAMES, ROWS).count("\n") == len(ROWS)


def test_a_list_among_json_lines_is_one_bad_row(tmp_path):
    """At the top it means that the file is one array, which is said; later it is a row."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "a"}\n[1]\n{"body": "b"}\n')
    found = read_table(path, ["body"])
    assert found.columns["body"] == ["a", "b"]
    assert [bad.line for bad in found.bad] == [2]
    path.write_text('[1]\n{"body": "a"}\n')
    with pytest.raises(WeftError, match="array"):
        read_table(path, ["body"])


def test_labels_are_scaled_by_those_of_train_alone():
    labels, splits = np.array([10.0, 14.0, 100.0]), np.array([TRAIN, TRAIN, TRAIN + 1])
    found = standard(labels, splits)
    assert (found.offset, found.scale) == (12.0, 2.0)
    assert found.values.tolist() == [-1.0, 1.0, 44.0]
