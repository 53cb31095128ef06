"""Sounds and DNA drawn one by one: where an answer rests on, found where it was put."""

import re
from base64 import b64decode
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from weft.arena.analysis.documents import NAME, shared_out
from weft.arena.experiment.runs import run_of
from weft.arena.experiment.settings import experiment, write_experiment
from weft.cli import app
from weft.dna.bases import Kmers
from weft.files import read_json
from weft.pictures.drawing import write_png
from weft.report import write_report
from weft.report.charts.logo import logo
from weft.report.charts.spectrogram import spectrogram
from weft.sound.files import write_wav
from weft.training import train

run = CliRunner().invoke


def trained(where, task, trunk, steps=2, **more):
    training = {"steps": steps, "batch": 20, "lr": 1e-2, "warmup": 2, "device": "cpu"}
    model = {"trunk": trunk, "head": {"pool": "max"}}
    own = experiment({"task": task, "model": model, "training": training, **more})
    write_experiment(where, own)
    train(run_of(own), where)
    return where


def test_bases_share_what_their_tokens_moved():
    kmers = Kmers(k=3, step=2)
    found = shared_out(np.array([3.0, 0.0, -6.0]), kmers, 7)
    np.testing.assert_allclose(found, [1, 1, 1, 0, -2, -2, -2])


def test_a_logo_is_tallest_where_the_motif_is(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["sequence,label"]
    for row in range(120):
        letters = rng.choice(list("ACG"), 30)
        if row % 2:
            letters[9:12] = "T"  # no other base is T
        lines.append(f"{''.join(letters)},{('other', 'motif')[row % 2]}")
    (tmp_path / "table.csv").write_text("\n".join(lines))
    frame = {"dim": 16, "heads": 2}
    stack = {"frame": frame, "order": "sf"}
    trunk = {"name": "encoder", "embedding": {"positions": "none"}, "stack": stack}
    task = {"name": "dna", "data": str(tmp_path / "table.csv")}
    folder = trained(tmp_path / "run", task, trunk, 60)
    done = run(app, ["explain", str(folder), "--first", "12", "--device", "cpu"])
    assert done.exit_code == 0, done.output
    rows = read_json(folder / NAME)
    own = [row for row in rows if row["answer"] == "motif"]
    assert len(rows) == 12
    assert own
    for row in own:
        order = np.argsort(row["influence"])
        assert row["letters"][order[-1]] == "T"
        assert len(row["letters"]) == len(row["influence"]) == 30
    page = (folder / "report.html").read_text()
    assert "Looked at one by one" in page
    assert "drawn-1" in page or "<title>T at " in page


def test_a_spectrogram_shows_the_samples_and_the_report_what_was_drawn(tmp_path):
    lines = ["file,label"]
    for row in range(20):
        pitch = (400, 3000)[row % 2]
        tone = 0.3 * np.sin(2 * np.pi * pitch * np.arange(800) / 8_000 + row)
        write_wav(tmp_path / f"{row}.wav", tone, 8_000)
        lines.append(f"{row}.wav,{('low', 'high')[row % 2]}")
    (tmp_path / "table.csv").write_text("\n".join(lines))
    front = {"width": 8, "kernels": [10, 8], "strides": [5, 4], "norm": "layer"}
    stack = {"frame": {"dim": 8, "heads": 2}, "order": "s"}
    trunk = {"name": "waveform", "front": front, "stack": stack, "embedding": {}}
    task = {"name": "sounds", "data": str(tmp_path / "table.csv"), "length": 800}
    folder = trained(tmp_path / "run", task, trunk)
    done = run(app, ["explain", str(folder), "--first", "2", "--device", "cpu"])
    assert done.exit_code == 0, done.output
    for row in read_json(folder / NAME):
        image = np.asarray(Image.open(BytesIO(b64decode(row["image"]))))
        assert image.shape[0] == 40
        band = image[::-1].mean((1, 2)).argmax()
        assert (band > 20) == (row["label"] == "high")
        assert row["seconds"] == 0.1
        assert len(row["influence"]) == (800 - 45) // 20 + 1
    write_png(folder / "drawn" / "completed.png", np.zeros((4, 4, 3), np.uint8))
    page = write_report(folder).read_text()
    assert page.count("data:image/png;base64") >= 3


def test_drawings_are_to_scale():
    drawn = logo("ACGT", [0.5, -1.0, 0.0, 0.25], 400, "a logo")
    heights = [float(found) for found in re.findall(r"scale\(1 ([\d.]+)\)", drawn)]
    np.testing.assert_allclose(np.array(heights) / max(heights), [0.5, 1.0, 0.25], atol=1e-2)
    drawn = spectrogram("AAAA", [1.0, -0.5], 2.0, "a<b", 400, "a sound")
    bars = re.findall(r'<rect class="block"[^>]* y="([\d.]+)"[^>]* height="([\d.]+)"', drawn)
    (above, tall), (below, short) = [map(float, bar) for bar in bars]
    assert above + tall == pytest.approx(below)  # the line in the middle
    assert tall == pytest.approx(2 * short)
    assert "a&lt;b" in drawn
