"""A trained model is used from anywhere, with its training data gone, and answers the same.

Seen to fail: with labels left as text, the integers of a JSON file come back as strings.
"""

import csv
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from small_reviews import TEXTS, fitted, reviews, write_lines
from typer.testing import CliRunner

import weft
from weft.cli import app
from weft.errors import WeftError

run = CliRunner().invoke
FIXTURES = Path(__file__).parents[1] / "fixtures" / "v0_1_0"


def predicted(trained, file, *more):
    done = run(app, ["predict", str(trained), str(file), "--device", "cpu", *more])
    assert done.exit_code == 0, done.output
    return done


def test_python_reload_and_command_line_are_equal(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = weft.load(trained)
    shares = model.predict(TEXTS, proba=True)
    weft.save(model, tmp_path / "copy")
    assert weft.load(tmp_path / "copy").predict(TEXTS, proba=True) == shares
    file = write_lines(tmp_path / "new.jsonl", [{"body": text} for text in TEXTS])
    predicted(trained, file, "--proba", "--out", "out.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["prediction"] for row in rows] == model.predict(TEXTS) == [5, 1, 5, 1]
    assert [{1: row["p(1)"], 5: row["p(5)"]} for row in rows] == shares
    assert all(sum(own.values()) == pytest.approx(1) for own in shares)


def test_one_text_gives_one_answer(trained):
    model = weft.load(trained / "best")
    assert model("so good") == model.predict("so good") == 5
    assert model(TEXTS) == model.predict(TEXTS)
    assert model.predict([]) == []
    assert model.predict({"body": "so good"}) == 5
    assert not model.training


def test_batches_change_little_and_modes_and_threads_nothing(trained):
    model = weft.load(trained)
    whole = model.predict(TEXTS, proba=True)
    alone = [model.predict(text, proba=True) for text in TEXTS]
    for one, other in zip(whole, alone, strict=True):
        assert one == pytest.approx(other, abs=1e-6)
    before = torch.get_rng_state()
    with ThreadPoolExecutor(4) as pool:
        every = list(pool.map(lambda _: model.predict(TEXTS, proba=True), range(8)))
    assert all(found == whole for found in every)
    assert torch.equal(before, torch.get_rng_state())
    model.train()
    assert model.predict(TEXTS, proba=True) == whole
    assert model.training


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_every_kind_goes_in_and_out(trained, tmp_path, kind):
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    rows = [{"body": row["body"], "stars": row["stars"]} for row in reviews(30, seed=1)]
    start = write_lines(tmp_path / "in.jsonl", rows)
    first = tmp_path / f"out.{kind}"
    predicted(trained, start, "--out", str(first))
    again = predicted(trained, first, "--out", str(tmp_path / "again.jsonl"))
    assert "accuracy 1.0000 on 30 rows" in again.output
    found = [json.loads(line) for line in (tmp_path / "again.jsonl").read_text().splitlines()]
    assert [str(row["prediction"]) for row in found] == [str(row["stars"]) for row in rows]


def test_standard_input_and_lines_of_text(trained, tmp_path):
    call = ["predict", str(trained), "-", "--device", "cpu"]
    assert run(app, call, input="so good\nbad\n").stdout.splitlines()[1:] == ["so good,5", "bad,1"]
    table = "stars,body\n5,so good\n"
    assert run(app, call, input=table).stdout.splitlines()[1] == "5,so good,5"
    (tmp_path / "texts.txt").write_text("bad bad\n")
    assert predicted(trained, tmp_path / "texts.txt").stdout.splitlines()[1] == "bad bad,1"


def test_clear_words_for_what_is_wrong(trained, tmp_path):
    rows = [{"body": "good", "stars": 7}, {"body": " "}, {"body": "bad", "stars": 1}]
    file = write_lines(tmp_path / "odd.jsonl", rows)
    done = predicted(trained, file)
    assert "never saw, not scored: '7' (1)" in done.output
    assert "line 2: missing text in 'body'" in done.output
    assert json.loads(done.stdout.splitlines()[1])["prediction"] is None
    (tmp_path / "other.csv").write_text("bodi,stars\nx,1\n")
    missing = run(app, ["predict", str(trained), str(tmp_path / "other.csv")])
    assert missing.exit_code == 1
    assert "no column 'body'; did you mean 'bodi'" in missing.output
    named = predicted(trained, tmp_path / "other.csv", "--text", "bodi")
    assert named.stdout.splitlines()[0] == "bodi,stars,prediction"
    (tmp_path / "latin.csv").write_bytes("body\nschön good\n".encode("latin-1"))
    assert "undecodable bytes in 'body'" in predicted(trained, tmp_path / "latin.csv").output
    decoded = predicted(trained, tmp_path / "latin.csv", "--encoding", "latin-1")
    assert "schön good,5" in decoded.stdout


@pytest.mark.parametrize(
    ("texts", "message"),
    [(["good", ""], "text 2: text is empty"), ([3], "text is a string; got 3"),
     ([("a", "b")], "is a string for this model"), ([{"x": "a"}], "has no 'body'")],
)  # fmt: skip
def test_texts_that_cannot_be_read(trained, texts, message):
    with pytest.raises(WeftError, match=message):
        weft.load(trained).predict(texts)


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU torch seeds it, and says nothing")
def test_no_stack_is_written_down_for_a_batch(trained, monkeypatch):
    """Without a GPU torch.manual_seed formats the stack for later: a tenth of small batches."""
    stacks = []
    monkeypatch.setattr("traceback.format_stack", lambda: stacks.append(1) or [])
    model, state = weft.load(trained), torch.get_rng_state()
    stacks.clear()
    assert model.predict(TEXTS, batch_tokens=1) == model.predict(TEXTS)
    assert not stacks
    assert torch.equal(torch.get_rng_state(), state)


def test_labels_that_do_not_fit_the_head_are_refused(trained, tmp_path):
    folder = shutil.copytree(trained / "best", tmp_path / "model")
    usage = json.loads((folder / "usage.json").read_text())
    (folder / "usage.json").write_text(json.dumps({**usage, "labels": [1, 2, 3]}))
    with pytest.raises(WeftError, match=r"labels .* 3 names .* model.classes = 2 .*remove usage"):
        weft.load(folder)
    (folder / "usage.json").write_text(json.dumps({**usage, "lables": []}))
    with pytest.raises(WeftError, match="no setting 'lables'"):
        weft.load(folder)
    (folder / "usage.json").unlink()
    with pytest.raises(WeftError, match="saved without its labels"):
        weft.load(folder).predict(["good"])


def test_folders_of_weft_0_1_0_load_without_labels():
    folder = next(path.parent for path in sorted(FIXTURES.rglob("config.json")))
    assert weft.load(folder).usage is None
    assert "saved without labels" in run(app, ["show", str(folder)]).output


def test_show_says_what_a_run_is(trained):
    shown = run(app, ["show", str(trained)]).output
    for part in ("classifier on encoder", "reviews.jsonl", "labels   1, 5", "test     accuracy",
                 "best validation", f"weft predict {trained}"):  # fmt: skip
        assert part in shown


def test_labels_keep_their_kind(tmp_path):
    for labels in [(False, True), ("ja ü", "日本"), (0.5, 1.5)]:
        model = fitted(reviews(120, labels), tmp_path / str(labels[0]))
        assert set(model.predict(["good good", "bad bad"])) == set(labels)
        assert weft.load(tmp_path / str(labels[0])).usage.labels == labels


def test_pairs(tmp_path):
    rows = [
        {"a": f"{i} good", "b": "good" if i % 2 else "bad", "fits": bool(i % 2)} for i in range(120)
    ]
    out = tmp_path / "pairs"
    model = fitted(rows, out, text="a", second="b", label="fits")
    pairs = [("x good", "good"), ("x good", "bad")]
    assert model.predict(pairs) == [True, False]
    assert model.predict(pairs[0]) is True
    assert model("x good", "bad") is False
    with (tmp_path / "new.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("a", "b"), *pairs])
    done = predicted(out, tmp_path / "new.csv")
    assert [line.split(",")[-1] for line in done.stdout.splitlines()[1:]] == ["True", "False"]


def test_a_language_model_says_how_it_is_used(tmp_path):
    from weft.models.usage.record import Usage

    stack = weft.Stack(frame=weft.Frame(dim=8, heads=1), order="sf")
    decoder = weft.Decoder(embedding=weft.Embedding(vocab=256), stack=stack)
    model = weft.LanguageModel(trunk=decoder).build()
    model.usage = Usage(kind="language", tokens="bytes")
    with pytest.raises(WeftError, match="weft generate"):
        model.predict(["text"])
