"""`convert` from folder to folder: what Transformers loads, what was measured, kills."""

import json

import pytest
import torch
import transformers as hf
from long_models import bert, llama, roberta, saved, text
from safetensors.torch import load_file

import weft
import weft.interop.hf as interop
from weft.interop.hf import Conversion, ConversionListener, convert
from weft.rows import read

N = 96
ENCODER = "sliding(8) | keys(first=1)"
DECODER = {"*": "sliding(8) | keys(first=3)", "1": "sliding(8) | columns(4)"}
QUICK = {"steps": 3, "rate": 3e-3, "rounds": 0, "held_rows": 2, "probe_rows": 1}


@pytest.fixture
def words(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text(text(120))
    return path


def source(make, tmp_path):
    torch.manual_seed(0)
    return saved(make, tmp_path / make.__name__)


def logits_by_hand(make, folder, ids):
    """A dense model of the base's class under an explicit mask, from the converted weights."""
    made = make()
    table = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    own = type(made.config)(
        **{**made.config.to_dict(), "max_position_embeddings": config["max_position_embeddings"]}
    )
    own._attn_implementation = "eager"
    made = type(made)(own).eval()
    made.load_state_dict(table, strict=False)
    n = ids.shape[1]
    i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
    sees = ((i - j).abs() < 8) | (j < 1)
    mask = torch.zeros(1, 1, n, n).masked_fill(~sees, torch.finfo(torch.float32).min)
    return made(ids, attention_mask=mask).logits


@pytest.mark.parametrize("make", [bert, roberta])
def test_an_encoder_is_loaded_by_transformers(make, tmp_path, words):
    out = tmp_path / "long"
    settings = Conversion(length=N, pattern=ENCODER, **QUICK)
    found = convert(source(make, tmp_path), out, settings, train=words)
    model = hf.AutoModelForMaskedLM.from_pretrained(out).eval()
    ids = torch.randint(5, 30, (2, N), generator=torch.Generator().manual_seed(1))
    ours = model(ids).logits
    assert torch.allclose(ours, logits_by_hand(make, out, ids), atol=1e-4)
    dense = interop.use(model, None)(ids).logits
    assert not torch.allclose(ours, dense, atol=1e-3)
    assert hf.AutoTokenizer.from_pretrained(out).model_max_length == N
    assert list(found.curves) == [
        "original, in chunks",
        "converted, before training",
        "converted, trained",
    ]
    assert found.training["steps"] == 3


def test_tiled_positions_repeat(tmp_path):
    folder = source(bert, tmp_path)
    convert(folder, tmp_path / "long", Conversion(length=80, pattern=ENCODER, rounds=0))
    name = "bert.embeddings.position_embeddings.weight"
    old, new = (load_file(at / "model.safetensors")[name] for at in (folder, tmp_path / "long"))
    assert torch.equal(new, torch.cat((old, old, old[:16])))


def test_a_decoder_generates_under_its_patterns(tmp_path, words):
    out = tmp_path / "long"
    settings = Conversion(length=N, pattern=DECODER, **QUICK)
    found = convert(source(llama, tmp_path), out, settings, train=words)
    assert found.trials
    assert found.form.rotary_layers == (1,)
    assert found.form.rotary_factor == min(found.trials, key=lambda trial: trial.mean).factor
    model = hf.AutoModelForCausalLM.from_pretrained(out).eval()
    ids = torch.randint(5, 30, (1, 60), generator=torch.Generator().manual_seed(1))
    given = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    cached = model.generate(ids, **given)
    assert torch.equal(cached, model.generate(ids, use_cache=False, **given))
    kept = interop.cache(model)
    model(ids, past_key_values=kept)
    assert kept.held_keys()[0] == 7 + 3


def test_nothing_of_a_converted_model_is_dense_by_default(tmp_path):
    out = tmp_path / "long"
    convert(source(bert, tmp_path), out, Conversion(length=N, pattern=ENCODER, rounds=0))
    config = json.loads((out / "config.json").read_text())
    assert config["model_type"] not in dict(hf.models.auto.configuration_auto.CONFIG_MAPPING_NAMES)
    for auto in (hf.AutoModel, hf.AutoModelForMaskedLM, hf.AutoModelForSequenceClassification):
        (rule,) = interop.patterns_of(auto.from_pretrained(out)).rules
        assert rule.pattern == weft.pattern(ENCODER)
    model = hf.AutoModelForMaskedLM.from_pretrained(out).eval()
    model.save_pretrained(tmp_path / "again")
    again = hf.AutoModelForMaskedLM.from_pretrained(tmp_path / "again").eval()
    ids = torch.randint(5, 30, (1, N))
    assert torch.equal(again(ids).logits, model(ids).logits)
    for given in (model, out):
        with pytest.raises(ValueError, match="patterns would be lost here"):
            interop.load(given)
    with pytest.raises(ValueError, match="leave out attn_implementation='sdpa'"):
        hf.AutoModelForMaskedLM.from_pretrained(out, attn_implementation="sdpa")


def test_training_lowers_the_held_out_loss(tmp_path, words):
    settings = Conversion(length=N, pattern=ENCODER, **{**QUICK, "steps": 20})
    found = convert(source(bert, tmp_path), tmp_path / "long", settings, train=words)
    loss = {name: float(curve.nanmean()) for name, curve in found.curves.items()}
    assert loss["converted, trained"] < loss["converted, before training"] - 0.3


class Killed(Exception):
    pass


class KillsAt(ConversionListener):
    """Stops where a kill may: at a step, or at a note that holds some words."""

    def __init__(self, step=None, words=None):
        self.step, self.words, self.steps = step, words, []

    def note(self, text):
        if self.words is not None and self.words in text:
            raise Killed

    def training(self, progress):
        self.steps.append(progress.step)
        if progress.step == self.step:
            raise Killed


@pytest.mark.parametrize("make", [bert, llama])
@pytest.mark.parametrize(
    "kill", [{"step": 2}, {"words": "before training"}, {"words": "converted, trained"}], ids=str
)
def test_a_killed_conversion_goes_on_bitwise(make, kill, tmp_path, words, monkeypatch):
    monkeypatch.setattr("weft.interop.hf.dense_to_long.settings.EVERY", 0.0)
    folder = source(make, tmp_path)
    settings = Conversion(length=N, pattern=ENCODER if make is bert else DECODER, **QUICK)
    convert(folder, tmp_path / "whole", settings, train=words)
    torch.manual_seed(7)  # what a new process has drawn is something else
    with pytest.raises(Killed):
        convert(folder, tmp_path / "parts", settings, train=words, listener=KillsAt(**kill))
    assert not (tmp_path / "parts/config.json").exists()
    rest = KillsAt()
    convert(folder, tmp_path / "parts", settings, train=words, listener=rest)
    if "step" in kill:
        assert rest.steps[0] > 1, "steps that were done are not done again"
    one, other = (load_file(tmp_path / at / "model.safetensors") for at in ("whole", "parts"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not (tmp_path / "parts/work").exists()


def test_the_report_and_its_rows(tmp_path, words):
    out = tmp_path / "long"
    settings = Conversion(length=N, pattern=DECODER, **{**QUICK, "rounds": 1})
    found = convert(source(llama, tmp_path), out, settings, train=words)
    rows = read(out / "rows.jsonl")
    assert {row["row"] for row in rows} == {"loss", "rotary", "prefill", "conversion"}
    (last,) = [row for row in rows if row.get("variant") == "converted, trained"]
    assert last["loss_64-96"] == pytest.approx(
        float(found.curves["converted, trained"][64:].mean())
    )
    page, card = (out / "report.html").read_text(), (out / "README.md").read_text()
    for shown in ("Loss by position", "Rotary base", "decoding state", f"{last['loss_64-96']:.4f}"):
        assert shown in page
        assert shown in card
    assert "AutoModelForCausalLM" in card
    assert (out / "figures/loss.svg").is_file()
    # 2 layers of 2 key heads of 8 channels, float32: 2 · 2 · 8 · 4 bytes a key, for keys and values
    dense = next(row for row in rows if row.get("variant") == "dense")
    assert dense["state_bytes"] == 2 * 2 * 2 * 8 * 4 * N
    assert found.smaller > 2
