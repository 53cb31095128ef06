"""Tables: the numbers of the rows, in words a reader understands."""

from pathlib import Path

import pytest
from bench_rows import row, some_rows
from rich.console import Console

from weft.report import bench_table, bench_tables, to_markdown, to_rich
from weft.report.read.run_folder import RunFiles
from weft.report.tables.settings import settings
from weft.report.tables.table import byte_count, relative, seconds


def cells(table, case, length):
    (found,) = [line for line in table.cells if line[:2] == [length, case]]
    return found


def test_times_are_relative_to_dense():
    table = bench_table(some_rows())
    assert cells(table, "full", "1,024")[3:] == ["4 ms ±10%", "dense", "10 ms ±10%", "dense", "–"]
    near = cells(table, "longformer", "1,024")
    assert near[3:7] == ["1 ms ±10%", "4× faster", "15 ms ±10%", "1.5× slower"]
    assert cells(table, "longformer", "4,096")[4] == "15.2× faster"
    assert cells(table, "full", "4,096")[7] == "3 MiB"


def test_a_case_without_a_number_keeps_its_row_and_reason():
    table = bench_table(some_rows())
    assert cells(table, "fnet", "1,024")[3:] == ["–", "", "–", "", "–"]
    (note,) = table.notes
    assert note.startswith("fnet at 1,024")
    assert note.endswith("Unsupported: fnet cannot be causal")


def test_reasons_are_told_once_with_their_lengths():
    rows = [row("a", n, error="too long") for n in (64, 4096)]
    rows += [row("b", 64, median=1.0), row("b", 64, "memory", error="killed")]
    assert bench_table(rows).notes == [
        "a at 64, 4,096 (forward): too long",
        "b at 64 (memory): killed",
    ]
    assert bench_table([row("a", 64, error="too long")]).notes == ["a at 64: too long"]


def test_what_was_measured_again_replaces_what_was_there():
    rows = [row("a", 64, error="too long"), row("b", 64, median=0.003, kernels="gather")]
    rows += [row("b", 64, median=0.002, kernels="band"), row("a", 64, median=0.001)]
    table = bench_table(rows)
    assert cells(table, "a", "64")[3] == "1 ms ±10%"
    assert cells(table, "b", "64")[2:4] == ["band", "2 ms ±10%"]
    assert table.notes == []


def test_settings_do_not_share_a_table():
    rows = [row("a", 64, median=0.001), row("b", 64, median=0.003)]
    rows.append(row("a", 64, median=0.002, batch=8))
    small, large = bench_tables(rows)
    assert [cells(table, "a", "64")[3] for table in (small, large)] == ["1 ms ±10%", "2 ms ±10%"]
    assert "batch 2" in small.title
    assert "batch 8" in large.title


def test_the_title_says_what_was_measured():
    assert bench_table(some_rows()).title == (
        "A fine CPU, float32, batch 2, 4 heads of 16, bidirectional"
    )
    shared = [{**found, "kv_heads": 2} for found in some_rows()]
    assert "4 heads of 16 that share 2 of keys, bi" in bench_table(shared).title
    assert bench_table([]).title == "nothing was measured"


def test_markdown():
    lines = to_markdown(bench_table(some_rows())).splitlines()
    assert lines[0].startswith("**A fine CPU")
    body = [line for line in lines if line.startswith("|")]
    widths = {line.replace("\\|", "").count("|") for line in body}
    assert widths == {9}
    assert any("sliding(window=8) \\| keys(first=1) [core]" in line for line in body)
    assert lines[-1].startswith("- fnet at 1,024")


def test_the_terminal_shows_the_same_cells():
    table = bench_table(some_rows())
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115  # closed with the process
    console.print(to_rich(table))
    console.file.close()
    text = console.export_text()
    for line in table.cells:
        assert all(cell in text for cell in line)
    assert table.notes[0] in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.0, "2 s"), (0.0123, "12.3 ms"), (0.000456, "456 µs"), (3.2e-9, "0.0032 µs"), (75, "75 s")],
)
def test_seconds(value, text):
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12, "12 B"),
        (2048, "2 KiB"),
        (1020 * 2**20, "0.996 GiB"),
        (3 * 2**30, "3 GiB"),
        (2**41, "2 TiB"),
        (1.5 * 2**20, "1.5 MiB"),
    ],
)
def test_byte_count(value, text):
    assert byte_count(value) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(0.25, "4× faster"), (1.5, "1.5× slower"), (1.0, "as fast"), (0.9, "1.11× faster")],
)
def test_relative(ratio, text):
    assert relative(ratio) == text


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_what_contenders_share_is_told_once(count):
    """From two on: one alone has nothing to share."""
    names = ["full", "fnet", "linformer"][:count]
    own = {name: {"mixer": name, "model": {"dim": 32}} for name in names}
    found = settings(RunFiles(Path("run"), grid={"contenders": own, "target": 0.5}))
    dims = [(key, value) for key, value in found if "dim" in key]
    mixers = [value for key, value in found if "mixer" in key]
    assert mixers == names
    alone = [("grid: contenders.full.model.dim", "32")][:count]
    assert dims == (alone if count < 2 else [("grid: model.dim", "32")])
    assert ("grid: target", "0.5") in found
