"""Examples are short, run as they stand, and do what they say."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.py"))


def run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (path,) = [path for path in EXAMPLES if path.stem == name]
    return runpy.run_path(str(path), run_name="__main__")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_short_and_tested(path):
    assert len(path.read_text().splitlines()) < 60
    assert f"test_{path.stem}" in globals(), f"no test runs {path.name}"


def test_own_pattern(tmp_path, monkeypatch):
    found = run("own_pattern", tmp_path, monkeypatch)
    length = found["LENGTH"]
    powers = {0, *(2**p for p in range(20))}
    assert found["facts"].pairs == sum(i - j in powers for i in range(length) for j in range(i + 1))
    assert (tmp_path / "runs/doubling.png").read_bytes()[:4] == b"\x89PNG"
    assert found["losses"][-1] < 0.1 < 2.0 < found["losses"][0]


def test_language_model(tmp_path, monkeypatch):
    found = run("language_model", tmp_path, monkeypatch)
    assert found["losses"][-1] < found["losses"][0] / 4
    assert found["written"].startswith(b"Over and ")
    assert len(found["written"]) == len(b"Over and ") + 65
    # Two layers, keys and values of the last 31 tokens.
    assert found["model"].state_size(1_000_000) == 2 * 2 * 31 * 64


def test_long_document_classifier(tmp_path, monkeypatch, capsys):
    found = run("long_document_classifier", tmp_path, monkeypatch)
    assert found["accuracy"] > 0.8
    assert "25% by chance" in capsys.readouterr().out


def test_plug_in(tmp_path, monkeypatch):
    found = run("plug_in", tmp_path, monkeypatch)
    read = found["LENGTH"] + found["NEW"] - 1
    assert found["held"] == [63 + 4] * 3 + [read]
    assert found["written"].shape == (1, read + 1)


def test_citizen(tmp_path, monkeypatch):
    found = run("citizen", tmp_path, monkeypatch)
    assert found["found"] == found["model"].predict(found["texts"]) == ["late", "early"]
    assert "test" in (tmp_path / "exported/README.md").read_text()


def test_clients(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    found = run("clients", tmp_path, monkeypatch)
    assert found["scores"]["gini"] > 0.3  # 0.625 is the best: it knows the order alone
    assert len(found["answers"]) == found["CLIENTS"]
    page = (tmp_path / "runs/clients/report.html").read_text()
    assert "What answers rest on" in page
    assert "default with probability" in capsys.readouterr().out


def test_sound(tmp_path, monkeypatch):
    found = run("sound", tmp_path, monkeypatch)
    assert found["outcome"].best_score > 0.9
    assert found["answer"]["high"] > 0.5


def test_dna(tmp_path, monkeypatch):
    found = run("dna", tmp_path, monkeypatch)
    assert found["outcome"].best_score > 0.9
    one, other = found["both"]
    assert one == pytest.approx(other, abs=1e-5)
    assert one["promoters"] > 0.5


def test_pictures(tmp_path, monkeypatch):
    found = run("pictures", tmp_path, monkeypatch)
    # Four pictures of 16 pixels, equally likely: 2 / 16 bits a pixel at best.
    assert 0.1 < found["outcome"].best_score < 0.3
    assert found["probe"].accuracy > 0.9
    given, *drawn, whole = found["rows"]
    assert all((each == whole).all() for each in drawn)
    assert (given[2:] == 128).all()


def test_several_at_once(tmp_path, monkeypatch):
    found = run("several_at_once", tmp_path, monkeypatch)
    assert found["outcome"].best_score > 0.9
