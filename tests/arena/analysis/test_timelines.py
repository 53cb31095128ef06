"""Timelines of clients: rows that the report draws, and a verb that says them.

Seen to fail: with influences turned round, with the days of the first client for all, and with
numbers left as a model reads them.
"""

import csv
import re

import numpy as np
import pytest
from typer.testing import CliRunner

import weft
from weft.arena.analysis.explain import explain
from weft.arena.analysis.timelines import NAME, write_timelines
from weft.arena.experiment.runs import rows_of
from weft.arena.experiment.settings import read_experiment
from weft.cli import app
from weft.errors import WeftError
from weft.events.encoders import Sample
from weft.report import write_report
from weft.rows import read

pytest.importorskip("pyarrow", reason="events are read by pyarrow")

SETTINGS = ["model.layers=1", "model.dim=16", "model.heads=2", "training.batch=16"]
COLUMNS = ("client", "when", "kind", "eur", "default")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on events that stay, and their rows by client."""
    home, rng, plain = tmp_path_factory.mktemp("timelines"), np.random.default_rng(0), {}
    with (home / "events.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for client in range(120):
            days = np.sort(rng.integers(19_000, 19_400, rng.integers(2, 9)))
            for day in days:
                kind, eur = f"k{int(rng.integers(3))}", round(float(rng.lognormal(3, 1)), 2)
                plain.setdefault(f"c{client}", []).append((int(day), kind, eur))
                table.writerow((f"c{client}", day, kind, eur, client % 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_CACHE", str(home / "cache"))
        given = {"id": "client", "time": "when", "label": "default", "last": 5}
        data, out = str(home / "events.csv"), home / "run"
        weft.fit(events=data, **given, steps=2, device="cpu", out=out, settings=SETTINGS)
        yield out, plain


def test_a_row_is_an_event_of_a_client_with_what_it_moves(trained):
    run, plain = trained
    found = write_timelines(run, first=2)
    experiment = read_experiment(run)
    rows = rows_of(experiment, "test")
    assert read(run / NAME) == [row for events in found for row in events]
    for place, events in enumerate(found):
        own = plain[events[0]["client"]][-5:]
        assert [event["day"] for event in events] == [day for day, _, _ in own]
        expected = explain(weft.load(run), rows.batch(np.array([place])), 1)
        moved = [event["influence"] for event in events]
        np.testing.assert_allclose(moved, expected.influence)
        for event, (_, kind, eur) in zip(events, own, strict=True):
            kind_said, eur_said = event["event"].split(", eur ")
            assert kind_said == f"kind {kind}"
            assert float(eur_said.replace(",", "")) == pytest.approx(eur, rel=0.1)


def test_the_verb_says_them_and_the_report_draws_them(trained):
    run, _ = trained
    client = write_timelines(run, first=1)[0][0]["client"]
    said = CliRunner().invoke(app, ["explain", str(run), "--client", client, "--device", "cpu"])
    assert said.exit_code == 0, said.output
    assert f"client {client}: " in said.output
    assert len(re.findall(r"^  [+-]\d\.\d{4}  kind", said.output, re.M)) in (2, 3)
    text = write_report(run).with_suffix(".md").read_text()
    assert f"**Client {client}:**" in text
    assert "influence of the events of client" in (run / "report.html").read_text()


def test_a_client_that_is_not_there_is_named(trained):
    with pytest.raises(WeftError, match="no client 'c999'"):
        write_timelines(trained[0], ["c999"])


def test_numbers_are_turned_back():
    values = np.random.default_rng(0).lognormal(3, 1, 5000)
    sample = Sample()
    sample.add(values, np.linspace(0, 1, len(values)))
    for kind in ("quantile", "log", "standard"):
        scale = sample.numbers(kind)
        for value in np.quantile(values, (0.1, 0.5, 0.9)):
            back = scale.decode(float(scale.encode(np.array([value]))[0]))
            assert back == pytest.approx(value, rel=1e-3)
