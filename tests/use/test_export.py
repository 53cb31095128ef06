"""ONNX files: equal to the model by onnxruntime, for batches and lengths that were not traced."""

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import weft
from weft.cli import app
from weft.errors import Unsupported, WeftError
from weft.mixers import MIXERS
from weft.rows import read

pytest.importorskip("onnx", reason="export writes ONNX files")
pytest.importorskip("onnxscript", reason="torch translates to ONNX by it")
onnxruntime = pytest.importorskip("onnxruntime", reason="an exported file is run by it")
from weft.use import export  # noqa: E402  # after the packages that it needs

# What the documents say: benchmarks/cases/onnx_survey.py.
SURVEY = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "onnx_survey.jsonl"
ROWS = {row["mixer"]: row for row in read(SURVEY)}
FOUND = {name: row["exports"] for name, row in ROWS.items()}
UNFINISHED = {name for name, row in ROWS.items() if "not finished" in str(row.get("reason"))}


def classifier(name, length=300):
    config = weft.mixer(name)
    causal = not config.traits.bidirectional
    trunk = weft.Decoder if causal else weft.Encoder
    stack = weft.Stack(frame=weft.Frame(dim=16, heads=2, length=length), order="sf", mixer=config)
    torch.manual_seed(0)
    embedding = weft.Embedding(vocab=256, positions="none")
    return weft.Classifier(trunk=trunk(embedding=embedding, stack=stack), classes=3).build().eval()


def scores(path, ids):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"ids": ids.numpy()})[0]


@pytest.mark.parametrize("name", ["sliding_window(window=9)"])
def test_a_file_gives_the_scores_of_the_model(tmp_path, name):
    model = classifier(name)
    done = export.export_onnx(model, tmp_path / "a.onnx")
    assert done.length is None
    assert done.dense_patterns
    assert done.difference <= export.TOLERANCE
    for shape in ((1, 1), (4, 50), (2, 211)):
        ids = torch.randint(256, shape)
        with torch.no_grad():
            wanted = model(ids).numpy()
        assert np.abs(scores(tmp_path / "a.onnx", ids) - wanted).max() < 1e-5


def test_what_cannot_be_exported_is_refused(tmp_path, monkeypatch):
    with pytest.raises(Unsupported, match="adaptive_span has no ONNX graph for any length"):
        export.export_onnx(classifier("adaptive_span"), tmp_path / "a.onnx")
    matcher = weft.Matcher(trunk=classifier("full").config.trunk).build()
    with pytest.raises(WeftError, match="classifiers, regressions and language models"):
        export.export_onnx(matcher, tmp_path / "a.onnx")
    monkeypatch.setattr(export, "find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(WeftError, match="needs onnxscript: pip install onnxscript"):
        export.export_onnx(classifier("full"), tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_differs_is_not_written(tmp_path, monkeypatch):
    """A model that is another one when it is compared."""
    model = classifier("full")
    written = export._written

    def spoiled(model, path, length):
        found = written(model, path, length)
        with torch.no_grad():
            model.head[0].bias += 1e-3
        return found

    monkeypatch.setattr(export, "_written", spoiled)
    with pytest.raises(Unsupported, match=r"differs from the model by 1\.0e-03"):
        export.export_onnx(model, tmp_path / "a.onnx", 8)
    assert list(tmp_path.iterdir()) == []


def test_the_verb_writes_and_says_what(tmp_path):
    weft.save(classifier("full"), tmp_path / "model")
    done = CliRunner().invoke(
        app, ["export", "onnx", str(tmp_path / "model"), str(tmp_path / "a.onnx"), "--length", "8"]
    )
    assert done.exit_code == 0, done.output
    assert "any batch, 8 tokens" in done.output
    assert (tmp_path / "a.onnx").is_file()
    done = CliRunner().invoke(app, ["export", "onnx", str(tmp_path / "model"), "a.txt"])
    assert done.exit_code == 2


@pytest.mark.long
@pytest.mark.parametrize("name", MIXERS)
def test_each_mechanism_is_exported_or_refused(tmp_path, name):
    """Never a file that differs, never an error that is not ours."""
    exported, refused, fixed = set(), [], int(ROWS[name]["length"])
    for length in (None, fixed):
        try:
            done = export.export_onnx(classifier(name), tmp_path / "a.onnx", length)
        except Unsupported as refusal:
            refused.append(str(refusal))
        else:
            assert done.difference <= export.TOLERANCE
            exported.add(length)
            break
    assert (tmp_path / "a.onnx").exists() == bool(exported)
    assert all(name in reason or "differs from the model" in reason for reason in refused)
    found = {"any length": {None}, "one length": {fixed}, "none": set()}[FOUND[name]]
    assert exported == found or name in UNFINISHED


def test_the_survey_has_every_mechanism():
    assert set(FOUND) == {name for name in MIXERS if MIXERS[name].__module__.startswith("weft.")}
