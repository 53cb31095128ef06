import json

import pytest
import torch
from model_parts import built, ids
from safetensors.torch import load_file, save_file

from weft.errors import WeftError
from weft.feedforward import Dense
from weft.layers.embedding import Embedding
from weft.layers.norm import Norm
from weft.layers.positions import Rope
from weft.mixers import MIXERS, Frame
from weft.models import (
    Classifier,
    Decoder,
    Encoder,
    EncoderDecoder,
    LanguageModel,
    Matcher,
    Stack,
    config_from_dict,
    config_to_dict,
    load,
    save,
    saving,
)

FRAME = Frame(dim=8, heads=2, length=20, positions=Rope(), kv_heads=1, dropout=0.1, seed=3)
EMBEDDING = Embedding(vocab=11, positions="learned", registers=1)
ENCODER = Encoder(
    embedding=EMBEDDING,
    stack=Stack(frame=FRAME, order="sfsf", mixer="full, linformer(rank=4)", dropout=0.2),
)
DECODER = Decoder(
    embedding=EMBEDDING,
    stack=Stack(
        frame=FRAME,
        order="scf",
        feedforward=Dense(activation="relu", expansion=2),
        norm=Norm(kind="rms", eps=1e-6),
        recompute="reversible",
    ),
)
PLAIN = Decoder(embedding=EMBEDDING, stack=Stack(frame=FRAME, order="sfsf"))
SHARED = Stack(frame=FRAME, order="sfs", mixer="linformer(rank=4, sharing='layers')")
CONFIGS = {
    "encoder": ENCODER,
    "decoder": PLAIN,
    "tied": LanguageModel(trunk=PLAIN),
    "untied": LanguageModel(trunk=PLAIN, tied=False),
    "classifier": Classifier(trunk=ENCODER, classes=3, pool="first", hidden=4),
    "matcher": Matcher(trunk=ENCODER, pool="max"),
    "shared layers": Encoder(embedding=EMBEDDING, stack=SHARED),
    "continuous": Encoder(embedding=Embedding(channels=3), stack=SHARED),
    "encoder_decoder": LanguageModel(
        trunk=EncoderDecoder(encoder=ENCODER, decoder=DECODER, shares_embedding=True)
    ),
}


def run(name, model):
    if name == "matcher":
        return model(ids(2, 5), ids(2, 4))
    if name == "continuous":
        return model(torch.linspace(0, 1, 30).view(2, 5, 3).to(next(model.parameters()).dtype))
    extra = {"source": ids(2, 4)} if name == "encoder_decoder" else {}
    return model(ids(2, 5), **extra)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_loaded_model_is_the_saved_one(name, dtype, tmp_path):
    model = built(CONFIGS[name], dtype=dtype).eval()
    assert save(model, tmp_path / "deep" / "model") == tmp_path / "deep" / "model"
    loaded = load(tmp_path / "deep" / "model")
    assert loaded.config == model.config
    assert not loaded.training
    assert all(p.dtype == dtype for p in loaded.parameters())
    assert torch.equal(run(name, loaded), run(name, model))


@pytest.mark.parametrize("name", CONFIGS)
def test_configs_survive_json(name):
    config = CONFIGS[name]
    text = json.dumps(config_to_dict(config))
    assert config_from_dict(json.loads(text)) == config


def test_only_two_plain_files_are_left(tmp_path):
    save(built(PLAIN), tmp_path / "model")
    assert [f.name for f in tmp_path.iterdir()] == ["model"]
    assert sorted(f.name for f in (tmp_path / "model").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]


def test_shared_parameters_are_written_once_and_stay_shared(tmp_path):
    model = built(CONFIGS["encoder_decoder"])
    save(model, tmp_path / "model")
    written = load_file(tmp_path / "model" / "model.safetensors")
    tables = [name for name in written if name.endswith("embedding.table")]
    assert len(tables) == 1
    trunk = load(tmp_path / "model").trunk
    assert trunk.encoder.embedding.table is trunk.decoder.embedding.table
    save(built(CONFIGS["shared layers"]), tmp_path / "layers")
    first, second = load(tmp_path / "layers").stack.mixers
    assert first.compress_k is second.compress_k


def test_a_trained_copy_goes_on_training(tmp_path):
    save(built(CONFIGS["tied"]), tmp_path / "model")
    model = load(tmp_path / "model").train()
    model(ids(2, 5)).logsumexp(-1).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def test_a_saved_model_is_replaced(tmp_path):
    old, new = built(PLAIN), built(PLAIN, seed=1)
    save(old, tmp_path / "model")
    save(new, tmp_path / "model")
    assert torch.equal(load(tmp_path / "model")(ids(2, 5)), new.eval()(ids(2, 5)))


def test_a_failure_leaves_the_old_model_and_no_rest(tmp_path, monkeypatch):
    old = built(PLAIN).eval()
    save(old, tmp_path / "model")

    def full_disk(*args):
        raise OSError("no space left")

    monkeypatch.setattr(saving, "save_file", full_disk)
    with pytest.raises(OSError, match="no space left"):
        save(built(PLAIN, seed=1), tmp_path / "model")
    assert [f.name for f in tmp_path.iterdir()] == ["model"]
    assert torch.equal(load(tmp_path / "model")(ids(2, 5)), old(ids(2, 5)))


def test_other_peoples_files_are_safe(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(WeftError, match="holds something other than a saved model"):
        save(built(PLAIN), tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    with pytest.raises(WeftError, match="give a folder of the model's own"):
        save(built(PLAIN), tmp_path / "notes.txt")


def tensors(change):
    def spoil(folder):
        found = load_file(folder / "model.safetensors")
        change(found)
        save_file(found, folder / "model.safetensors")

    return spoil


def settings(change):
    def spoil(folder):
        found = json.loads((folder / "config.json").read_text())
        change(found)
        (folder / "config.json").write_text(json.dumps(found))

    return spoil


TABLE = "embedding.table"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (tensors(lambda t: t.pop(TABLE)), f"missing {TABLE}, unknown none"),
        (tensors(lambda t: t.update(extra=torch.ones(2))), "missing none, unknown extra"),
        (tensors(lambda t: [t.pop(n) for n in list(t)[:9]]), "and 4 more"),
        (
            tensors(lambda t: t.update({TABLE: torch.ones(3, 8)})),
            rf"{TABLE} is \(11, 8\) by the config, but \(3, 8\) in the file",
        ),
        (
            settings(lambda s: s.update(format=3, weft="9.1")),
            "was written by weft 9.1 in format 3; this is weft .*: upgrade weft",
        ),
        (settings(lambda s: s.update(format="x")), "is not the config of a saved model"),
        (settings(lambda s: s.update(model=3)), "model is a model: .* got 3"),
        (settings(lambda s: s["model"].pop("name")), "needs a 'name'; got .*'embedding', 'stack'"),
        (settings(lambda s: s["model"].update(name="decodr")), "did you mean 'decoder'"),
        (settings(lambda s: s["model"].pop("embedding")), "model: decoder needs embedding"),
        (settings(lambda s: s["model"].update(depth=2)), "model: decoder has no setting 'depth'"),
        (
            settings(lambda s: s["model"]["stack"].update(drop=0.1)),
            "model.stack has no setting 'drop'; did you mean 'dropout'",
        ),
        (
            settings(lambda s: s["model"]["stack"]["frame"].update(head=0.1)),
            "model.stack.frame has no setting 'head'; did you mean 'heads'",
        ),
        (
            settings(lambda s: s["model"]["stack"]["mixer"].update(name="fully")),
            "model.stack.mixer: no mixer named 'fully'; did you mean 'full'",
        ),
        (lambda folder: (folder / "config.json").unlink(), "it has no config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "it has no model.safetensors"),
    ],
)
def test_refuses_what_does_not_fit(spoil, message, tmp_path):
    save(built(PLAIN, dtype=torch.float32), tmp_path / "model")
    spoil(tmp_path / "model")
    with pytest.raises(WeftError, match=message):
        load(tmp_path / "model")


def test_settings_that_a_file_leaves_out_take_their_defaults(tmp_path):
    save(built(PLAIN), tmp_path / "model")
    settings(lambda s: s["model"]["stack"].pop("recompute"))(tmp_path / "model")
    assert load(tmp_path / "model").config == PLAIN


def test_every_mixer_has_a_dict():
    for name in MIXERS:
        stack = Stack(frame=Frame(dim=8, heads=2), order="s", mixer=MIXERS[name]())
        config = Encoder(embedding=EMBEDDING, stack=stack)
        assert config_from_dict(json.loads(json.dumps(config_to_dict(config)))) == config


def test_a_decoder_that_is_not_like_its_encoder_is_read_whole():
    """An encoder of 'w' sublayers has no decoder like it, so none can be filled in."""
    weighted = Encoder(embedding=EMBEDDING, stack=Stack(frame=FRAME, order="ww"))
    pair = EncoderDecoder(encoder=weighted, decoder=DECODER)
    assert config_from_dict(json.loads(json.dumps(config_to_dict(pair)))) == pair


@pytest.mark.parametrize(
    "edit",
    [
        lambda model: model["trunk"]["stack"]["frame"].update(dim=2**20),
        lambda model: model["trunk"]["embedding"].update(vocab=2**40),
        lambda model: model["trunk"]["embedding"].update(registers=2**62),
        lambda model: model["trunk"]["stack"]["frame"].update(length=2**33),
        lambda model: model["trunk"]["stack"].update(order="sf" * 3),
    ],
    ids=["dim", "vocab", "registers", "length", "order"],
)
def test_an_edited_config_takes_no_memory(edit, tmp_path, monkeypatch):
    """The weights' header is compared first, with a model that has shapes and no memory."""
    save(built(CONFIGS["tied"]), tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    edit(config["model"])
    path.write_text(json.dumps(config))
    built_on, build = [], LanguageModel.build

    def recorded(self):
        built_on.append(torch.get_default_device().type)
        return build(self)

    monkeypatch.setattr(LanguageModel, "build", recorded)
    with pytest.raises(WeftError, match=r"by the config, but|missing|describes no model"):
        load(tmp_path / "model")
    assert built_on == ["meta"]


@pytest.mark.parametrize("mixer", MIXERS)
def test_every_mixer_can_be_planned_without_memory(mixer):
    """On the meta device first, so that no cache keeps a tensor without values."""
    causal = not MIXERS[mixer]().traits.bidirectional
    stack = Stack(frame=Frame(dim=16, heads=4, length=32), mixer=mixer)
    trunk = Decoder(embedding=EMBEDDING, stack=stack) if causal else None
    config = trunk or Encoder(embedding=EMBEDDING, stack=stack)
    with torch.device("meta"):
        planned = config.build().state_dict()
    model = config.build()
    assert {name: t.shape for name, t in planned.items()} == {
        name: t.shape for name, t in model.state_dict().items()
    }
    assert all(tensor.is_meta for tensor in planned.values())
    assert model(ids(1, 20)).isfinite().all()


def test_a_training_without_a_model_is_told_from_a_folder_of_others(tmp_path):
    with pytest.raises(WeftError, match="is not a saved model"):
        load(tmp_path)
    (tmp_path / "experiment.json").write_text("{}")
    with pytest.raises(WeftError, match="has not come to its first evaluation"):
        load(tmp_path)


def test_a_comparison_names_its_models(tmp_path):
    for name in ("a-64-0", "b-64-0", "c-64-0", "d-64-0"):
        (tmp_path / "cells" / name / "best").mkdir(parents=True)
    with pytest.raises(WeftError, match=r"is a comparison; .*a-64-0, .*c-64-0 and 1 more"):
        load(tmp_path)
