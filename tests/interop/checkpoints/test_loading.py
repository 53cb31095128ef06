"""Folders in, weft models out: files, shards, tokenizers, decoding, training, and bad input."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import weft
from models import TINY, VOCAB
from weft.cli import app
from weft.errors import WeftError
from weft.interop.hf import load


@pytest.fixture
def folder(tmp_path):
    """A checkpoint of GPT-2."""
    TINY["GPT-2"].build(torch.float32).save_pretrained(tmp_path / "gpt2")
    return tmp_path / "gpt2"


def change(folder, **settings):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def test_files_shards_and_pickles_of_tensors_are_one(tmp_path, folder):
    model, ids = TINY["GPT-2"].build(torch.float32), torch.arange(12).view(2, 6)
    model.save_pretrained(tmp_path / "shards", max_shard_size="4KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    torch.save(model.state_dict(), pickled / "pytorch_model.bin")
    (pickled / "config.json").write_text((folder / "config.json").read_text())
    expected = load(model)(ids)
    for each in (folder, tmp_path / "shards", pickled):
        assert torch.equal(load(each)(ids), expected)
    assert next(load(folder, dtype=torch.bfloat16).parameters()).dtype == torch.bfloat16


def test_a_model_is_saved_loaded_decoded_and_trained_as_any(tmp_path, folder):
    model, ids = load(folder), torch.randint(0, VOCAB, (2, 7))
    weft.save(model, tmp_path / "saved")
    again = weft.load(tmp_path / "saved")
    whole = model(ids)
    assert torch.equal(again(ids), whole)
    first, state = again.step(ids[:, :3], again.start(2))
    second, _ = again.step(ids[:, 3:], state)
    torch.testing.assert_close(torch.cat((first, second), 1), whole)
    theirs = TINY["GPT-2"].build(torch.float32)
    expected = theirs.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0)
    assert torch.equal(again.generate(ids, 5), expected)
    before = model.trunk.embedding.table.clone()
    model(ids).square().mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert not torch.equal(model.trunk.embedding.table, before)


@pytest.mark.parametrize("name", ["Gemma 3", "T5", "Mistral"])
def test_decodes_step_by_step(name):
    model, ids = load(TINY[name].build()), torch.randint(5, VOCAB, (2, 14))
    source = {"source": ids[:, 3:]} if name == "T5" else {}
    whole, state = model(ids, **source), model.start(2, **source)
    rows = []
    for i in range(14):
        y, state = model.step(ids[:, i : i + 1], state)
        rows.append(y)
    torch.testing.assert_close(torch.cat(rows, 1), whole, rtol=0, atol=1e-9)


def test_the_tokenizer_comes_along(tmp_path, folder):
    from tokenizers import Tokenizer, models

    words = {"[UNK]": 0, "a": 1, "b": 2}
    Tokenizer(models.WordLevel(words, unk_token="[UNK]")).save(str(folder / "tokenizer.json"))
    weft.save(load(folder), tmp_path / "saved")
    usage = weft.load(tmp_path / "saved").usage
    assert (usage.kind, usage.tokens) == ("language", "tokenizer.json")
    assert json.loads(usage.tokenizer)["model"]["vocab"] == words


def test_labels_come_along(tmp_path):
    model = TINY["BERT, classes"].build(torch.float32)
    model.config.id2label = {0: "good", 1: "bad", 2: "neither"}
    model.save_pretrained(tmp_path / "bert")
    assert load(tmp_path / "bert").usage.labels == ("good", "bad", "neither")


def test_the_body_alone(tmp_path):
    model = TINY["BERT"].build(torch.float32)
    model.save_pretrained(tmp_path / "bert")
    ids = torch.arange(5, 11)[None]
    body = load(tmp_path / "bert", head="Model")
    torch.testing.assert_close(body(ids), model.bert(ids).last_hidden_state)


def test_old_names_of_norms(tmp_path, folder):
    model = TINY["BERT"].build(torch.float32)
    model.save_pretrained(tmp_path / "bert")
    path = tmp_path / "bert" / "model.safetensors"
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): t
        for name, t in load_file(path).items()
    }
    save_file(old, path)
    ids = torch.arange(5, 11)[None]
    torch.testing.assert_close(load(tmp_path / "bert")(ids), model(ids).logits)


def cut(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-40])


def cut_header(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:60])


def lying_header(folder):
    path = folder / "model.safetensors"
    table = {"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 16]}}
    text = json.dumps(table).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"0" * 16)


def lost(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["transformer.h.1.ln_2.bias"]
    save_file(tensors, path)


def surplus(folder):
    path = folder / "model.safetensors"
    save_file(load_file(path) | {"transformer.h.7.ln_2.bias": torch.zeros(2)}, path)


def pickled(folder):
    (folder / "model.safetensors").unlink()
    torch.save({"a": Code()}, folder / "pytorch_model.bin")


class Code:
    """What a pickle would run."""

    def __reduce__(self):
        return print, ("ran",)


def elsewhere(folder):
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    index = {"weight_map": {"wte.weight": "../other.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


BAD = {
    "cut short": (cut, "cut short or damaged: its header describes"),
    "cut in the header": (cut_header, "it says that its header has"),
    "a header that lies": (lying_header, "is not a safetensors file that can be read"),
    "a weight missing": (lost, r"missing h.1.ln_2.bias, unknown none"),
    "a weight too many": (surplus, r"missing none, unknown transformer.h.7.ln_2.bias"),
    "a pickle": (pickled, "never loaded"),
    "a shard elsewhere": (elsewhere, "is not a file of the folder"),
    "an unknown architecture": (lambda f: change(f, model_type="gpt3"), "did you mean 'gpt2'"),
    "a known one that is not read": (
        lambda f: change(f, model_type="yoso"),
        "'yoso' is known, and its checkpoints are not read: weft has no attention by sampled",
    ),
    "no architecture": (lambda f: change(f, model_type=None), "has no model_type"),
    "architectures of another type": (lambda f: change(f, architectures=3), "is a list of names"),
    "names of another type": (lambda f: change(f, architectures=[None]), r"got \[None\]"),
    "another size": (lambda f: change(f, n_embd=32), "belong to different models"),
    "a huge size": (lambda f: change(f, n_embd=2**30), "belong to different models"),
    "a head not read": (lambda f: change(f, architectures=["GPT2ForTokenClassification"]),
                        "are read with the heads LMHead, Model"),
    "a setting not read": (lambda f: change(f, scale_attn_by_inverse_layer_idx=True),
                           "scale_attn_by_inverse_layer_idx=False"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has no weights"),
    "not JSON": (lambda f: (f / "config.json").write_text("{"), "is not valid JSON"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input(folder, case, capsys):
    break_it, message = BAD[case]
    break_it(folder)
    with pytest.raises(WeftError, match=message):
        load(folder)
    assert "ran" not in capsys.readouterr().out


def test_two_weights_that_the_config_ties():
    model = TINY["GPT-2"].build()
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight + 1)
    with pytest.raises(WeftError, match=r"lm_head.weight should be the same as"):
        load(model)


def test_the_verb(tmp_path, folder):
    from typer.testing import CliRunner

    done = CliRunner().invoke(app, ["import", "hf", str(folder), str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "language_model" in done.output
    ids = torch.arange(6)[None]
    assert torch.equal(weft.load(tmp_path / "out")(ids), load(folder)(ids))
    missing = CliRunner().invoke(app, ["import", "hf", str(tmp_path / "no"), str(tmp_path / "x")])
    assert missing.exit_code == 1
    assert "there is no folder" in missing.output
