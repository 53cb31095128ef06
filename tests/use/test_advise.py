"""`weft advise`: the list follows from traits and committed rows, and says so."""

import json
from math import log2

import pytest
from typer.testing import CliRunner

import weft
from weft.cli import app
from weft.errors import WeftError
from weft.mixers import MIXERS
from weft.use import advise as module

run = CliRunner().invoke


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_who_cannot_is_not_in_the_list(causal, device):
    found = weft.advise(16384, causal=causal, device=device, count=len(MIXERS))
    named = {one.mixer for one in found.suggestions}
    assert named.isdisjoint(found.excluded)
    assert named | set(found.excluded) == set(MIXERS)
    for name in named:
        traits = MIXERS[name]().traits
        assert traits.causal if causal else traits.bidirectional
    assert "full" in named


def test_a_list_is_ranked_and_has_reasons():
    found = weft.advise(16384, device="cuda", count=6)
    assert len(found.suggestions) == 6
    scores = [one.score for one in found.suggestions if one.mixer != "full"]
    assert scores == sorted(scores, reverse=True)
    assert all(one.reasons for one in found.suggestions)
    names = ",".join(one.mixer for one in found.suggestions)
    assert f'--mixers "{names}"' in found.command


def test_the_score_is_the_rule(monkeypatch):
    fact = {"mixer": "longformer", "device": "cpu", "causal": False, "what": "layer"}
    speed = [fact | {"length": 1000, "faster": 4.0}, fact | {"length": 9000, "faster": 8.0}]
    speed += [fact | {"mixer": "bigbird", "device": "cuda", "length": 9000, "faster": 16.0}]
    quality = [
        {"mixer": "longformer", "task": task, "score": 0.5 + gain, "dense": 0.5}
        for task, gain in (("a", 0.05), ("b", -0.01))
    ]
    monkeypatch.setattr(module, "measured", lambda: {"speed": speed, "quality": quality})
    found = {one.mixer: one for one in weft.advise(8000, count=99).suggestions}
    assert found["longformer"].faster == 8.0  # the nearest length
    assert found["longformer"].score == pytest.approx(log2(8) + 0.02 / 0.02)
    assert found["bigbird"].faster is None  # another device counts half, no accuracy four points
    assert found["bigbird"].score == pytest.approx(log2(16) / 2 - 2)
    assert found["fnet"].score is None
    assert "not measured" in " ".join(found["fnet"].reasons)


def test_a_table_gives_the_length(tmp_path):
    path = tmp_path / "reviews.csv"
    rows = [f"{'good' if i % 2 else 'bad'} {'x' * i},{i % 2}" for i in range(300)]
    path.write_text("body,stars\n" + "\n".join(rows) + "\n")
    found = weft.advise(data=str(path), text="body", label="stars")
    assert 270 < found.length < 300
    assert f"--data {path} --text body --label stars" in found.command


def test_wrong_calls():
    with pytest.raises(WeftError, match="how long sequences are"):
        weft.advise()
    with pytest.raises(WeftError, match="cpu or cuda; got 'tpu'"):
        weft.advise(10, device="tpu")


def test_the_verb_shows_and_gives_json():
    args = ["advise", "--length", "16384", "--causal", "--device", "cpu"]
    shown = run(app, args)
    assert shown.exit_code == 0, shown.output
    assert "16,384 tokens, causal, on cpu" in shown.output
    assert "weft compare" in shown.output
    found = json.loads(run(app, [*args, "--json"]).output)
    assert found == json.loads(json.dumps(weft.advise(16384, causal=True).as_dict()))
