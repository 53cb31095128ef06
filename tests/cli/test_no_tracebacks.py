"""Whatever a person types or a file holds, the command line answers in words: no traceback."""

import errno
import gzip
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from weft.cli import app

JUNK = {
    "empty": b"",
    "torn": b"{",
    "list": b"[]",
    "number": b"3\n",
    "object": b"{}",
    "not utf-8": b"\xff\xfe",
    "deep": b"[" * 5000,
    "wrong types": b'{"format": 1, "contenders": 3, "modifications": 3, "experiment": 3, '
    b'"plugins": 3, "model": []}',
    "wrong types of format 2": b'{"format": 2, "model": [], "plugins": [3]}',
}
SETTINGS = {
    "mixer": "mixer = 5",
    "word": 'mixer = "reformer(rounds=full)"',
    "none": 'task = "listops(depth=none)"',
    "nan": "[training]\nlr = nan",
    "negative": "[training]\nsteps = -1",
    "device": '[training]\ndevice = "tpu"',
    "dim": "[model]\ndim = -3",
    "layers": "[model]\nlayers = 10000000000",
    "positions": '[model.trunk.stack.frame]\npositions = "ropes"',
    "deep": "x = " + "[" * 5000 + "]" * 5000,
    "digits": f"[training]\nsteps = {'9' * 5000}",
    "parentheses": f'mixer = "{"(" * 900}full{")" * 900}"',
}


def refused(*args, status=(1, 2)):
    done = CliRunner().invoke(app, list(map(str, args)))
    assert isinstance(done.exception, SystemExit | None), f"{args}: {done.exception!r}"
    assert done.exit_code in status, f"{args}: {done.output}"
    assert "Traceback" not in done.output
    return done.output


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("verb", ["train", "compare", "ablate"])
def test_settings(name, verb, tmp_path):
    text = SETTINGS[name]
    path = tmp_path / "a.toml"
    path.write_text(text if text.startswith("task") else f'task = "listops(length=64)"\n{text}\n')
    named = ["--recipe", path] if verb == "compare" else [path]
    assert "error" in refused(verb, *named, "--out", tmp_path / "out").lower()


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("verb", ["train", "compare", "ablate"])
def test_settings_that_are_something_else(junk, verb, tmp_path):
    for name in ("a.toml", "a.json"):
        (tmp_path / name).write_bytes(JUNK[junk])
        named = ["--recipe", tmp_path / name] if verb == "compare" else [tmp_path / name]
        refused(verb, *named, "--out", tmp_path / "out")


@pytest.mark.parametrize("junk", JUNK)
def test_model_folders(junk, tmp_path):
    (tmp_path / "config.json").write_bytes(JUNK[junk])
    (tmp_path / "model.safetensors").write_bytes(JUNK[junk])
    (tmp_path / "rows.csv").write_text("text\na\n")
    refused("show", tmp_path)
    refused("predict", tmp_path, tmp_path / "rows.csv")
    refused("generate", tmp_path, "--prompt", "a")
    refused("quantise", tmp_path, "--out", tmp_path / "b")
    refused("eval", tmp_path)


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize(
    "name", ["grid.json", "rows.jsonl", "ablation.json", "experiment.json", "job.json", "done.json"]
)
def test_run_folders(name, junk, tmp_path):
    run = tmp_path / "run"
    for args in (["eval", run], ["show", run], ["compare", "--out", run], ["ablate", "--out", run]):
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir()
        (run / name).write_bytes(JUNK[junk])
        refused(*args)
    refused("report", run, status=(0, 1, 2))  # shows what can be read, and says what cannot


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("kind", [".csv", ".tsv", ".jsonl", ".csv.gz", ".parquet", ".xz"])
def test_tables(kind, junk, tmp_path):
    table = tmp_path / f"a{kind}"
    table.write_bytes(JUNK[junk])
    args = ["--text", "a", "--label", "b", "--mixers", "full", "--out", tmp_path / "out"]
    refused("compare", "--data", table, *args)


def test_a_gzip_that_is_cut(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n1,2\n" * 1000)[:-20])
    args = ["--data", path, "--text", "a", "--label", "b", "--mixers", "full"]
    args += ["--out", tmp_path / "out"]
    assert "ended before the end-of-stream" in refused("compare", *args)


@pytest.mark.parametrize(
    "text",
    [
        "sink(3, first=7)",
        "(" * 900 + "causal" + ")" * 900,
        f"sliding({'9' * 5000})",
        "~" * 5000 + "causal",
        "causal & 3",
        "per_head()",
        "sliding(1.5)",
        "sliding(window=causal)",
        "blocked(3, 4)",
        "keys(at=[-1])",
        "segments(lengths=[])",
        "full\x1b[31m",
        "²",
    ],
    ids=lambda text: text[:16].encode("unicode_escape").decode(),
)
def test_patterns(text):
    assert "\x1b" not in refused("pattern", "--length", "8", "--", text)


def test_names_that_would_command_the_terminal(tmp_path):
    """A sequence that sets the window's title: click itself takes colours out, where none are."""
    folder = tmp_path / "a\x1b]0;title\x07"
    folder.mkdir()
    said = refused("show", folder)
    assert "\\x1b]0;title\\x07" in said.replace("\n", "")
    assert "\x1b" not in said
    assert "\x07" not in said


@pytest.mark.parametrize(
    "args",
    [
        ["show", "{file}"],
        ["eval", "{file}"],
        ["report", "{file}"],
        ["predict", "{file}", "{file}"],
        ["train", "demo", "--out", "{file}"],
        ["compare", "--recipe", "demo", "--out", "{file}"],
        ["compare", "--task", "listops(length=64)", "--mixers", "5", "--out", "{out}"],
        ["compare", "--data", "{folder}", "--text", "a", "--label", "b", "--out", "{out}"],
        ["compare", "--data", "{none}", "--text", "a", "--label", "b", "--out", "{out}"],
        ["generate", "{folder}", "--batch-file", "{binary}"],
        ["tasks", "5"],
        ["tasks", "listops(length=0)"],
        ["plan", "full(window=3)", "--length", "8"],
        ["new", "mixer", "1a"],
        ["mixers", "longformer(window=wide)"],
        ["--plugin", "no.such.module", "mixers"],
        ["train", "lra_listops", "--set", "mixer=5", "--out", "{out}"],
        ["train", "lra_listops", "--set", "=", "--out", "{out}"],
    ],
    ids=" ".join,
)
def test_wrong_calls(args, tmp_path):
    (tmp_path / "file").write_text("plain")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder").mkdir()
    places = {name: tmp_path / name for name in ("file", "folder", "binary", "none", "out")}
    refused(*(arg.format(**places) for arg in args))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read(tmp_path):
    (tmp_path / "a.toml").write_text("task = 'listops'")
    (tmp_path / "a.toml").chmod(0)
    assert "Permission denied" in refused("train", tmp_path / "a.toml", "--out", tmp_path / "out")


@pytest.mark.parametrize("number", ["ENOSPC", "EIO", "EROFS", "EMFILE", "EDQUOT"])
def test_what_the_system_refuses(number, monkeypatch, tmp_path):
    """Also where the error names no file, as of a write to a full disk."""
    code = getattr(errno, number)

    def fails(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    (tmp_path / "a.toml").write_text('task = "listops(length=64)"')
    monkeypatch.setattr(Path, "mkdir", fails)
    said = refused("train", tmp_path / "a.toml", "--out", tmp_path / "out", status=(1,))
    assert os.strerror(code) in said
