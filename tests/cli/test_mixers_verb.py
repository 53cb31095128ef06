"""`weft mixers`: every mixer, with the traits it declares."""

import json
from dataclasses import dataclass

from typer.testing import CliRunner

from weft.cli import app
from weft.mixers import MIXERS, Traits

run = CliRunner().invoke


def test_json_holds_every_trait():
    done = run(app, ["mixers", "--json"])
    assert done.exit_code == 0
    found = {row["name"]: row for row in json.loads(done.output)}
    assert list(found) == list(MIXERS)
    for name, row in found.items():
        traits = MIXERS[name]().traits
        for trait in ("family", "paper", "time", "memory", "state", "exact", "causal", "cross"):
            assert row[trait] == getattr(traits, trait), (name, trait)
        assert row["streams"] == (traits.state is not None)
        assert MIXERS.read({"name": name, **row["settings"]}) == MIXERS[name]()


def test_the_table_holds_every_mixer():
    done = run(app, ["mixers"])
    assert done.exit_code == 0
    rows = {line.split()[0]: line for line in done.output.splitlines() if line.split()}
    assert set(MIXERS) <= set(rows)
    header = done.output.splitlines()[0].split()
    columns = ["name", "family", "causal", "cross", "streams", "time", "memory", "state", "paper"]
    assert header == columns
    assert "Beltagy et al. 2020" in rows["longformer"]
    assert rows["full"].count("yes") == 3
    assert rows["fnet"].count("yes") == 0


def test_causal_is_not_streaming(monkeypatch):
    @dataclass(frozen=True)
    class OneWay:
        name = "one_way"
        traits = Traits(family="f", paper="p", time="n", memory="n", causal=True, state=None)

    monkeypatch.setitem(MIXERS._entries, "one_way", OneWay)
    (row,) = [
        r for r in json.loads(run(app, ["mixers", "--json"]).output) if r["name"] == "one_way"
    ]
    assert (row["causal"], row["streams"], row["settings"]) == (True, False, {})
