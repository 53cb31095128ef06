"""Masked units: HuBERT's loss by hand, hidden frames that leak nothing, units of known sounds."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from weft.arena.experiment.runs import rows_of, run_of
from weft.arena.experiment.settings import experiment
from weft.arena.tasks.dna.long_promoters import LongPromoters
from weft.arena.tasks.sound.digits import Digits
from weft.arena.tasks.sound.units import centres_of, units_of, with_units
from weft.errors import WeftError
from weft.layers.embedding import Embedding
from weft.layers.fronts.conv_features import ConvFeatures
from weft.mixers import Frame
from weft.models import Encoder, Stack, Waveform, load, save
from weft.objectives import Batch, MaskedUnits
from weft.objectives.modalities.masked_units import spans
from weft.sound.files import write_wav
from weft.sound.spectrum import mfcc
from weft.training import train

FRONT = ConvFeatures(width=6, kernels=(6, 3), strides=(4, 2))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


def trunk(norm="group"):
    return Waveform(
        embedding=Embedding(channels=1, positions="sinusoidal"),
        stack=Stack(frame=Frame(dim=8, heads=2), order="sf", mixer="full"),
        front=dataclasses.replace(FRONT, norm=norm),
    )


def built(norm="group", **settings):
    torch.manual_seed(0)
    return MaskedUnits(units=5, width=4, **settings).build(trunk(norm)).build().double()


def batch(n=120):
    torch.manual_seed(1)
    sizes = (n, 61, 90)
    valid = torch.arange(n) < torch.tensor(sizes)[:, None]
    x = torch.randn(3, n, 1, dtype=torch.float64).masked_fill(~valid[..., None], torch.nan)
    return Batch(x=x, valid=valid, second=torch.randint(5, (3, FRONT.frames(n))))


def test_the_loss_by_hand():
    model, own = built(temperature=0.3), batch()
    objective = MaskedUnits(units=5, width=4, rate=0.1, span=3, temperature=0.3)
    loss = objective.loss(model, own, torch.Generator().manual_seed(4))
    real = model.trunk.rows_valid(own.valid)
    hidden = spans(real, 0.1, 3, torch.Generator().manual_seed(4))
    units = own.second
    assert units is not None
    total, right = 0.0, 0
    for row, n in enumerate((120, 61, 90)):  # each sound by itself
        m = FRONT.frames(n)
        frames, _ = model.trunk.features(own.x[row : row + 1, :n], None)
        for i in range(m):
            if hidden[row, i]:
                frames[0, i] = model.hidden_frame
        h = model.project(model.trunk.read_frames(frames, None)[1][0])
        for i in range(m):
            if hidden[row, i]:
                scores = torch.cosine_similarity(h[i], model.units) / 0.3
                unit = units[row, i]
                total -= scores.log_softmax(0)[unit].item()
                right += int(scores.argmax() == unit)
    assert loss.count == hidden.sum() > 3
    assert abs(loss.total.item() - total) < 1e-9
    assert loss.right == right


def test_spans_are_hidden_in_real_frames_and_in_every_sound():
    real = torch.arange(40) < torch.tensor([[40], [7], [1], [23]])
    none = spans(real, 1e-9, 4, torch.Generator().manual_seed(0))
    assert (none.sum(1) >= 1).all()
    assert none.sum(1).max() <= 4
    draws = [spans(real, 0.08, 10, torch.Generator().manual_seed(i)) for i in range(400)]
    assert not any((each & ~real).any() for each in draws)
    # Hidden unless none of the ten frames up to it begins a span, the one that is sure included.
    share = torch.stack([each[0, 20:] for each in draws]).double().mean().item()
    assert abs(share - (1 - 0.92**10 * 30 / 40)) < 0.03


def test_hidden_frames_leak_nothing():
    model = built(norm="layer").eval()  # statistics over time would tell
    x = torch.randn(1, 120, 1, dtype=torch.float64)
    hidden = torch.zeros(1, FRONT.frames(120), dtype=torch.bool)
    hidden[:, 3:6] = True
    # Samples that frames 3 to 5 alone have seen: behind the reach of 2, before the start of 6.
    first, last = 2 * FRONT.hop + FRONT.reach, 6 * FRONT.hop
    assert first < last
    changed = x.clone()
    changed[:, first:last] = 9.0
    assert torch.equal(model(x, hidden=hidden), model(changed, hidden=hidden))
    assert not torch.equal(model(x), model(changed))


def tones(folder, count=8):
    """Sounds of two of four tones, the second of which says the digit."""
    rng = np.random.default_rng(0)
    for digit in (1, 2):
        for take in range(count + 6):
            pitches = (500 + 400 * rng.integers(2), 1_500 + 1_000 * (digit - 1))
            parts = [np.sin(2 * np.pi * f * np.arange(1_200) / 8_000) for f in pitches]
            sound = 0.3 * np.concatenate(parts) + 0.01 * rng.standard_normal(2_400)
            write_wav(folder / f"{digit}_me_{take}.wav", sound, 8_000)


def tables(folder, objective):
    return {
        "task": {"name": "digits", "folder": str(folder), "valid": 4, "length": 2_400},
        "objective": objective,
        "model": {
            "trunk": {
                "name": "waveform",
                "front": {"width": 8, "kernels": [40, 8], "strides": [20, 4], "norm": "layer"},
            },
            "mixer": "sliding_window(window=8)", "dim": 16, "heads": 2, "order": "sf",
        },
        "training": {"steps": 30, "batch": 8, "lr": 1e-2, "device": "cpu", "evaluate_every": 30},
    }  # fmt: skip


def test_units_of_tones(tmp_path):
    tones(tmp_path)
    one = experiment(tables(tmp_path, "masked_units(units=4)"))
    centres = centres_of(one.task, 8)  # tones, and where one ends
    front = ConvFeatures(width=8, kernels=(40, 8), strides=(20, 4))
    seen = set()
    for row in range(10):
        units = units_of(one.task.load("train")[row][:, 0], centres, front, 8_000)
        assert len(units) == front.frames(2_400)
        ends = units[2:11], units[-11:-2]  # well inside each tone
        assert all(len(set(part.tolist())) == 1 for part in ends)
        assert ends[0][0] != ends[1][0]
        seen |= {part[0] for part in ends}
    assert len(seen) >= 3
    rows = rows_of(one, "valid")
    found = rows.batch(np.arange(2))
    plain = one.task.load("valid").batch(np.arange(2))
    assert torch.equal(found.x, plain.x)
    assert found.second.shape == (2, front.frames(found.x.shape[1]))
    assert "units=4" in rows.fingerprint


def test_a_frame_has_the_unit_whose_middle_is_nearest():
    x = np.random.default_rng(0).standard_normal(1_500)
    points = mfcc(x, 8_000)  # of 200 samples, one each 80: each is a centre of its own
    for front in (FRONT, ConvFeatures(width=8, kernels=(40, 8), strides=(20, 3))):
        wanted = []
        for i in range(front.frames(1_500)):
            middle = i * front.hop + (front.reach - 1) / 2
            apart = [abs(80 * j + 99.5 - middle) for j in range(len(points))]
            wanted.append(apart)
        found = units_of(x, points, front, 8_000)
        assert all(apart[unit] == min(apart) for apart, unit in zip(wanted, found, strict=True))


def test_pre_training_from_settings_then_classification(tmp_path):
    tones(tmp_path)
    given = tables(tmp_path, "classify")
    given["phase"] = [
        {"name": "units", "objective": "masked_units(units=4, width=8)", "steps": 60},
        {"name": "digits", "objective": "classify", "steps": 20},
    ]
    one = experiment(given)
    outcome = train(run_of(one), tmp_path / "run")
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    scores = [(r["phase"], r["score"]) for r in map(json.loads, lines) if r["kind"] == "valid"]
    units = max(score for phase, score in scores if phase == 0)
    # The most frequent unit of four fills less than half of the frames.
    assert units > 0.7
    assert (outcome.score or 0.0) > 0.9


def test_a_model_of_units_comes_back(tmp_path):
    model = built().eval()
    x = torch.randn(2, 120, 1, dtype=torch.float64)
    again = load(save(model, tmp_path / "m"))
    assert again.config == model.config
    assert torch.equal(again.double()(x), model(x))


def test_what_it_refuses(tmp_path):
    with pytest.raises(WeftError, match="rate is a probability"):
        MaskedUnits(rate=0.0)
    with pytest.raises(WeftError, match="masked_units hides frames of raw samples"):
        MaskedUnits().build(Encoder(embedding=Embedding(vocab=3), stack=trunk().stack))
    lacking = dataclasses.replace(batch(), second=None)
    with pytest.raises(WeftError, match="this batch has no units"):
        MaskedUnits(units=5, width=4).loss(built(), lacking, torch.Generator())
    tones(tmp_path, count=4)
    given = tables(tmp_path, "masked_units(units=4)")
    few = {**given, "objective": "masked_units(units=9999)"}
    with pytest.raises(WeftError, match="too few for 9999 units"):
        run_of(experiment(few))
    for task in (LongPromoters(), Digits(form="mu_law")):
        with pytest.raises(WeftError, match="masked_units learns from sounds as samples"):
            with_units(None, task, MaskedUnits(), built().config)
