"""From a file of events to a model that answers for clients of another file, by every way in.

Seen to fail: with batches left in the order of length, predictions go to other clients; with the
encoders fitted again on the new file, its rare category takes the code of a frequent one.
"""

import csv
import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import weft
from weft.cli import app
from weft.errors import WeftError
from weft.events.encoders import UNKNOWN, encoders_of
from weft.events.rows import padded
from weft.events.store import build_store
from weft.training.scores.ranking import gini
from weft.use.events import EventTally

pytest.importorskip("pyarrow", reason="events are read by pyarrow")
import pyarrow
from pyarrow import parquet

run = CliRunner().invoke
SMALL = ["model.layers=1", "model.dim=16", "model.heads=2", "training.batch=16"]


def events(count=90, seed=0, kinds=("card", "cash", "wire")):
    """Rows of (client, when, default, kind, eur): 1 to 12 events of each client."""
    rng = np.random.default_rng(seed)
    rows = []
    for client in range(count):
        bad = int(rng.random() < 0.4)
        for day in np.sort(rng.uniform(100, 200, rng.integers(1, 13))):
            kind = kinds[int(rng.integers(len(kinds)))]
            rows.append((f"c{client}", float(day), bad, kind, float(rng.lognormal(2 + bad, 1))))
    return rows


def written(rows, path, names=("client", "when", "default", "kind", "eur")):
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    parquet.write_table(pyarrow.table(columns), path)
    return path


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run whose events are gone, by `weft train --events`."""
    home = tmp_path_factory.mktemp("events")
    data = written(events(), home / "transactions.parquet")
    given = ["--events", str(data), "--id", "client", "--time", "when", "--label", "default"]
    given += ["--last", "8", "--steps", "3", "--device", "cpu", "--out", str(home / "run")]
    done = run(app, ["train", *given, *(part for each in SMALL for part in ("--set", each))])
    assert done.exit_code == 0, done.output
    data.unlink()
    return home / "run", done.output


def test_training_says_what_the_file_holds(trained):
    output = trained[1]
    for part in ("events of 90 clients", "kind (3 values)", "no client is in two splits",
                 "no column says until when", "Gini of single columns", "by rows drawn again",
                 "--events FILE"):  # fmt: skip
        assert part in output


def test_show_says_what_is_read_of_each_event(trained):
    said = run(app, ["show", str(trained[0])]).output
    for part in ("events   of each client by when, the last 8", "kind (3 values), eur (quantile)",
                 f"weft predict {trained[0]} --events FILE"):  # fmt: skip
        assert part in said
    assert "text     as" not in said


def test_predictions_are_those_of_the_model_client_by_client(trained, tmp_path):
    model = weft.load(trained[0])
    data = written(events(60, seed=1), tmp_path / "new.parquet")
    rows = list(weft.predict_events(model, str(data), proba=True))
    encoders = encoders_of(model.usage.events)
    store = build_store([data], encoders.columns, tmp_path / "store", encoders=encoders)
    assert [row["client"] for row in rows] == list(store.ids)
    for place, row in enumerate(rows):  # one at a time: no padding, no order
        x, valid = padded(store, np.array([place]), 8)
        with torch.no_grad():
            shares = model(x, valid=valid).softmax(-1)[0]
        assert row["p(1)"] == pytest.approx(shares[1].item(), abs=1e-5)
        assert row["prediction"] == str(int(shares[1] > shares[0]))


def test_command_line_and_python_are_equal_and_labels_are_scored(trained, tmp_path):
    data = written(events(60, seed=1), tmp_path / "new.parquet")
    rows = list(weft.predict_events(weft.load(trained[0]), str(data), proba=True))
    out = tmp_path / "out.csv"
    given = ["--events", str(data), "--proba", "--out", str(out), "--device", "cpu"]
    done = run(app, ["predict", str(trained[0]), *given])
    assert done.exit_code == 0, done.output
    with out.open() as file:
        found = list(csv.DictReader(file))
    assert [(row["client"], row["prediction"]) for row in found] == [
        (row["client"], row["prediction"]) for row in rows
    ]
    labels = {client: bad for client, _, bad, _, _ in events(60, seed=1)}
    margins = [np.log(row["p(1)"] / row["p(0)"]) for row in rows]
    own = gini(np.array(margins), np.array([labels[row["client"]] for row in rows]))
    assert f"Gini {own:.4f}" in done.output


def test_a_category_never_seen_is_said_with_its_row(trained, tmp_path):
    rows = events(20, seed=2)
    rows[7] = (*rows[7][:3], "barter", rows[7][4])
    data, tally = written(rows, tmp_path / "new.parquet"), EventTally()
    model = weft.load(trained[0])
    list(weft.predict_events(model, str(data), tally=tally))
    assert any("kind that training never saw" in line and "row 8: 'barter'" in line
               for line in tally.lines())  # fmt: skip
    encoders = encoders_of(model.usage.events)
    store = build_store([data], encoders.columns, tmp_path / "store", encoders=encoders)
    assert (store.codes == UNKNOWN).sum() == 1


def test_a_client_without_a_past_keeps_its_place(trained, tmp_path):
    rows = [(*row, 150.0) for row in events(20, seed=3)]
    rows += [("new", 160.0, 0, "card", 5.0, 150.0)]
    names = ("client", "when", "default", "kind", "eur", "until")
    data = written(rows, tmp_path / "new.parquet", names)
    tally = EventTally()
    given = {"until": "until", "proba": True, "tally": tally}
    found = list(weft.predict_events(weft.load(trained[0]), str(data), **given))
    assert found[-1] == {"client": "new", "prediction": None, "p(0)": None, "p(1)": None}
    said = "\n".join(tally.lines())
    assert "no event before their `until`" in said
    assert "after their `until`, the future: left out (the first: new.parquet, row" in said


def test_models_of_texts_and_of_events_say_which_they_are(trained, tmp_path):
    model = weft.load(trained[0])
    with pytest.raises(WeftError, match="reads events of clients, not texts"):
        model.predict(["a text"])
    text = weft.Classifier(
        trunk=weft.Encoder(
            embedding=weft.Embedding(vocab=5),
            stack=weft.Stack(frame=weft.Frame(dim=8, heads=1), order="s"),
        ),
        classes=2,
    ).build()
    with pytest.raises(WeftError, match="reads no events"):
        next(weft.predict_events(text, "x.parquet"))
    both = run(app, ["predict", str(trained[0])])
    assert both.exit_code == 2
    assert "--events FILE" in both.output


def test_fit_takes_events_and_answers_the_same(tmp_path):
    data = str(written(events(), tmp_path / "transactions.parquet"))
    columns = {"id": "client", "time": "when", "label": "default", "last": 8}
    out = tmp_path / "run"
    given = {"steps": 2, "device": "cpu", "out": out, "settings": SMALL}
    model = weft.fit(events=data, **columns, **given)
    assert model.scores["metric"] == "gini"
    assert model.scores["gini bootstrap error"] > 0
    rows = list(weft.predict_events(model, data))
    assert rows == list(weft.predict_events(weft.load(out), data))
    with pytest.raises(WeftError, match="one of them"):
        weft.fit(data, events=data)


def test_a_column_that_tells_the_label_is_named(tmp_path):
    rows = [(*row, float(row[2])) for row in events(120)]
    names = ("client", "when", "default", "kind", "eur", "closed")
    data = written(rows, tmp_path / "transactions.parquet", names)
    from weft.arena.tasks import TASKS
    from weft.arena.tasks.events.describe import alone, describe_events

    given = {"id": "client", "time": "when", "label": "default", "valid_share": 0.3}
    task = TASKS["events"](data=str(data), **given)
    first = alone(task)[0]
    assert (first.column, first.leaks) == ("closed", True)
    assert "LEAK?    closed tells the label by itself" in describe_events(task)
    other = TASKS["events"](data=str(data), leave_out=("closed",), **given)
    assert "LEAK?" not in describe_events(other)


def test_a_comparison_takes_events(tmp_path, monkeypatch):
    """The grid of `weft compare --events`; trainings are those of any task."""
    import weft.arena.grid.compare as compared

    seen = {}

    def kept(grid, out, *more, **given):
        seen["grid"] = grid
        raise WeftError("far enough")

    monkeypatch.setattr(compared, "compare", kept)
    data = written(events(), tmp_path / "transactions.parquet")
    given = ["--events", str(data), "--id", "client", "--time", "when", "--label", "default"]
    given += ["--mixers", "lstm", "--steps", "2", "--out", str(tmp_path / "out")]
    done = run(app, ["compare", *given])
    assert "far enough" in str(done.exception) + done.output
    own = seen["grid"].contenders["lstm"]
    assert (own.task.id, own.task.label, own.training.accumulate) == ("client", "default", 4)
    assert json.dumps(own.tables())
