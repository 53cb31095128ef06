"""Whole reports: every part is there, the bold number is the best, nothing ends in a crash."""

import json
import random
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from markup import drawings, finite, read_page, tables_of, visible
from run_folders import MECHANISMS, cell, failed, full_run, metrics, write_rows

from weft.errors import WeftError
from weft.report import write_report
from weft.rows import append, read

PARTS = (
    *("The answer", "Quality, speed and memory", "Accuracy", "Compared with published figures"),
    *("Speed, memory and size", "Over length", "Learning curves", "By group of examples"),
    *("Patterns", "Required attention span", "What failed", "Reproduce"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = full_run(tmp_path_factory.mktemp("run"), lengths=(1024, 4096), seeds=2)
    write_report(made)
    return made


def written(folder):
    """The page and the Markdown of a report, both checked."""
    path = write_report(folder)
    page, text = path.read_text(), path.with_suffix(".md").read_text()
    read_page(page)
    for drawing in drawings(page):
        finite(drawing)
    tables_of(text)
    return page, text


def test_every_part_is_there(folder):
    page, text = (folder / "report.html").read_text(), (folder / "report.md").read_text()
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert tuple(headings) == PARTS
    assert tuple(re.findall(r"^## (.*)$", text, re.MULTILINE)) == PARTS
    links = re.findall(r'href="#([\w-]+)"', page)
    assert links == re.findall(r'<section id="([\w-]+)"', page)


def test_the_page_is_whole_and_asks_for_nothing(folder):
    page = (folder / "report.html").read_text()
    found = read_page(page)
    assert len(drawings(page)) == 2 * 6  # wide and narrow: trade-off, lengths, 2 × learning, ...
    images = [attrs for tag, attrs in found.tags if tag == "img"]
    assert len(images) == 3
    assert all(attrs["alt"] and attrs["src"].startswith("data:image/png") for attrs in images)
    assert "http://www.w3.org/2000/svg" in page
    assert not re.findall(r"https?://(?!www\.w3\.org)", page)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ('<script src="https://example.org/a.js"></script>', "script src"),
        ("<p><b></p>", "closes nothing"),
        ('<p onclick="x()"></p>', "runs"),
        ('<link rel="stylesheet" href="#">', "loads"),
        ("<style>@import 'a'</style>", "import"),
    ],
    ids=["network", "order", "handler", "link", "import"],
)
def test_the_check_of_pages_bites(folder, broken, message):
    page = (folder / "report.html").read_text()
    with pytest.raises(AssertionError, match=message):
        read_page(page.replace("</main>", broken + "</main>"))


@pytest.mark.parametrize("n", [1024, 4096])
def test_the_bold_score_is_the_best(folder, n):
    """Against numpy on the rows, in both forms."""
    rows = [r for r in read(folder / "rows.jsonl") if r["length"] == n and r["status"] == "done"]
    scores = {}
    for row in rows:
        scores.setdefault(row["label"], []).append(row["test_score"])
    ranked = sorted(scores, key=lambda name: -np.mean(scores[name]))
    shown = [
        f"{np.mean(scores[name]):.3f} ± {np.std(scores[name], ddof=1):.3f}" for name in ranked[:2]
    ]
    page = (folder / "report.html").read_text().replace("&nbsp;", " ").replace("<wbr>", "")
    assert f"<strong>{shown[0]}</strong>" in page
    assert f"<u>{shown[1]}</u>" in page
    cells = [cells for table in tables_of((folder / "report.md").read_text()) for cells in table]
    assert [c for c in cells if f"**{shown[0]}**" in c and c[0].startswith(ranked[0])]
    assert [c for c in cells if f"<ins>{shown[1]}</ins>" in c and c[0].startswith(ranked[1])]


def test_what_failed_is_told(folder):
    text = visible((folder / "report.html").read_text())
    assert "full 4,096 0, 1 out of memory needed 18.2 GiB, and the limit is 16 GiB" in text
    assert "reformer 4,096 0, 1 timed out ran past its limit of 10 minutes" in text
    assert "failed RuntimeError: loss is not finite at step 140 <lr=0.001>" in text


def test_the_rest_of_the_facts(folder):
    text = visible((folder / "report.html").read_text())
    assert "majority class" in text
    assert "Tay et al. 2021, table 1" in text
    assert "A fine CPU" in text
    assert "weft compare --task listops --mixers" in text
    assert "own generator, seed 0" in text


def test_the_files_of_the_markdown(folder):
    text = (folder / "report.md").read_text()
    shown = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    assert len(shown) == 6 + 3
    assert {f"report/{path.name}" for path in (folder / "report").iterdir()} == set(shown)
    for path in (folder / "report").glob("*.svg"):
        root = ElementTree.parse(path).getroot()
        assert "prefers-color-scheme:dark" in root[0].text
        assert root[1].get("class") == "ground"


HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "a|b*c_d_[e](http://x)`f`$g$~h~",
    "]]></svg><svg onload=alert(1)>",
    "\x00\x1b[31m\u202e\n## heading",
    "&lt;b&gt; 'quoted'",
)


def test_hostile_names_are_only_text(tmp_path):
    rows = []
    for at, name in enumerate(HOSTILE):
        row = cell(name, 512, 0, label=name, dense=at == 0, cell=f"cells/{at}")
        rows.append({**row, "task_spec": name, "data": name, "device_name": name, "metric": name})
        rows.append(failed(name, 512, 1, name, name) | {"label": name, "cell": "cells/x"})
    folder = write_rows(tmp_path, rows)
    (folder / "baselines.json").write_text(json.dumps({HOSTILE[0]: 0.2}))
    (folder / "grid.json").write_text(json.dumps({"command": HOSTILE[0], HOSTILE[1]: HOSTILE[2]}))
    (folder / "published.json").write_text(
        json.dumps({HOSTILE[0]: {"score": 1, "note": HOSTILE[1]}})
    )
    page, text = written(folder)
    assert "<script>alert" not in page
    assert "img" not in [tag for tag, _ in read_page(page).tags]
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    for path in (folder / "report").glob("*.svg"):
        ElementTree.parse(path)
    outside = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    assert not re.search(r"<(script|img|svg|b)\b", outside)
    assert "\n## heading" not in text
    assert not re.search(r"(?<!\\)\[e(?<!\\)\]\(", outside)


@pytest.mark.parametrize(
    "name",
    [
        "rows.jsonl",
        "grid.json",
        "baselines.json",
        "cells",
        "spans.jsonl",
        "pictures",
        "published.json",
    ],
)
def test_a_missing_file_is_a_sentence_at_most(tmp_path, name):
    folder = full_run(tmp_path / "run", lengths=(512,), seeds=1)
    (folder / name).rename(tmp_path / "away")
    page, _ = written(folder)
    text = visible(page)
    said = {
        "rows.jsonl": "there is no rows.jsonl",
        "grid.json": "there is no grid.json",
        "baselines.json": "scores of trivial rules were not recorded",
        "cells": "no learning curves",
    }
    assert said.get(name, "The answer") in text


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [cell("full", 512)],
        [cell("fnet", 512)],
        [failed("full", 512, 0, "failed", "a bug")],
        [{"status": "done"}],
        [{"label": "a"}, {"label": "b", "length": 3}],
        [cell("full", 512, test_score=None, valid_score=None)],
        [cell("full", 512, steps_per_second=None), cell("fnet", 512, peak_bytes=None)],
        [cell("full", 512, steps_per_second=0, peak_bytes=0), cell("fnet", 512)],
        [cell(m, 512, metric="bits per byte") for m in MECHANISMS],
    ],
    ids=["none", "dense", "other", "failed", "bare", "names", "no score", "gaps", "zeros", "bits"],
)
def test_small_runs(tmp_path, rows):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "grid.json").write_text("{}")
    append(folder / "rows.jsonl", rows)
    page, _ = written(folder)
    assert "The answer" in page


def spoiled(row, draw, share):
    odd = [None, float("nan"), float("inf"), -1, 0, 1e300, 1e-300, "text", True, [1], {"a": 1}]
    kept = {key: value for key, value in row.items() if draw.random() > share / 2}
    return {k: draw.choice(odd) if draw.random() < share else v for k, v in kept.items()}


@pytest.mark.parametrize("seed", range(12))
def test_odd_values_do_no_harm(tmp_path, seed):
    draw = random.Random(seed)
    share = (0.02, 0.1, 0.4)[seed % 3]

    def write(path, rows):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(spoiled(row, draw, share)) + "\n" for row in rows))

    rows = [cell(mixer, n) for mixer in ("full", "fnet", "bigbird") for n in (512, 1024)]
    write(tmp_path / "rows.jsonl", rows)
    for row in rows:
        write(tmp_path / row["cell"] / "metrics.jsonl", metrics(row, steps=200))
        groups = [{"group": str(at), "right": 3, "count": 7} for at in range(3)]
        write(tmp_path / row["cell"] / "groups.jsonl", groups)
    heads = [{"layer": at % 2, "head": at // 2, "span": at, "label": "full"} for at in range(8)]
    write(tmp_path / "spans.jsonl", heads)
    written(tmp_path)


def test_another_place(folder, tmp_path):
    path = write_report(folder, tmp_path / "there" / "first.html")
    assert path == tmp_path / "there" / "first.html"
    assert (tmp_path / "there" / "first.md").is_file()
    assert (tmp_path / "there" / "first" / "trade-off.svg").is_file()
    with pytest.raises(WeftError, match=r"ends in \.html"):
        write_report(folder, tmp_path / "first")


def test_a_training_folder(tmp_path):
    append(tmp_path / "metrics.jsonl", metrics(cell("full", 512)))
    outcome = {"status": "done", "score": 0.4, "best_score": 0.5, "model": "best", "seconds": 9.0}
    (tmp_path / "done.json").write_text(json.dumps(outcome))
    page, _ = written(tmp_path)
    assert "Learning curves" in page
    assert "weft train SETTINGS.toml" in page


def test_no_torch_is_loaded(folder):
    program = f"import sys; from weft.report import write_report; write_report({str(folder)!r})\n"
    program += "print([n for n in ('torch', 'numpy', 'matplotlib') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
