"""What cannot be converted is refused in words, and no folder is left behind."""

import json

import pytest
import torch
import transformers as hf
from long_models import ENCODER as SIZES
from long_models import bert, llama, saved, text, tokenizer
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from weft.cli import app
from weft.errors import WeftError
from weft.interop.hf import Conversion, convert

WINDOW = "sliding(8)"


@pytest.fixture
def words(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text(text(120))
    return path


@pytest.fixture
def folder(tmp_path):
    return saved(bert, tmp_path / "bert")


def change(folder, **settings):
    table = json.loads((folder / "config.json").read_text())
    table |= settings
    kept = {key: value for key, value in table.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))


def unknown(folder):
    change(folder, model_type="bertt")
    return "no model of model_type 'bertt'; did you mean 'bert'"


def nameless(folder):
    change(folder, model_type=None)
    return "has no model_type; write it in"


def converted(folder):
    change(folder, model_type="weft_long")
    return "was converted already"


def of_weft(folder):
    change(folder, model_type="weft")
    return "is a model of weft's own"


def cut(folder):
    with (folder / "model.safetensors").open("rb+") as file:
        file.truncate(4000)
    return "cut short|header"


def lost(folder):
    table = load_file(folder / "model.safetensors")
    del table["bert.encoder.layer.1.output.dense.weight"]
    save_file(table, folder / "model.safetensors", {"format": "pt"})
    return "lacks weights of BertForMaskedLM: bert.encoder.layer.1.output.dense.weight"


def surplus(folder):
    table = load_file(folder / "model.safetensors")
    table["bert.encoder.layer.2.output.dense.weight"] = torch.zeros(2, 2)
    save_file(table, folder / "model.safetensors", {"format": "pt"})
    return "has no place for: bert.encoder.layer.2.output.dense.weight"


def other_size(folder):
    change(folder, hidden_size=16)
    return "sizes"


def pickled(folder):
    (folder / "model.safetensors").unlink()
    torch.save({"bert.x": print}, folder / "pytorch_model.bin")
    return "never loaded since it could run any code"


def without_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    return "has no tokenizer"


def another_tokenizer(folder):
    made = hf.BertForMaskedLM(hf.BertConfig(**{**SIZES, "vocab_size": 20}))
    made.save_pretrained(folder)
    return "gives ids up to [0-9]+, and the model has 20"


def unknown_words(folder):
    table = json.loads((folder / "tokenizer.json").read_text())
    words = {word: at for word, at in table["model"]["vocab"].items() if at < 5}
    table["model"]["vocab"] = words
    (folder / "tokenizer.json").write_text(json.dumps(table))
    return "does not know [0-9]+% of the text"


HARMS = [unknown, nameless, converted, of_weft, cut, lost, surplus, other_size, pickled]
HARMS += [without_tokenizer, another_tokenizer, unknown_words]


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_a_broken_model(harm, folder, tmp_path, words):
    message = harm(folder)
    with pytest.raises(WeftError, match=message):
        convert(
            folder, tmp_path / "out", Conversion(length=64, pattern=WINDOW, steps=1), train=words
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 32}, "reads 32 tokens already"),
        ({"length": 16}, "reads 32 tokens already"),
        ({"pattern": "sliding("}, r"sliding\("),
        ({"pattern": {"*": WINDOW, "5": WINDOW}}, "layers of this model are 0 to 1"),
        ({"head": "CausalLM"}, "output layer without a bias"),
        ({"head": "Poetry"}, "no head 'Poetry'"),
        ({"rotary": 0.5}, "multiplied by 1 or more"),
        ({"dtype": "int8"}, "dtype is one of"),
        ({"steps": None, "minutes": None}, "training takes minutes= or steps="),
        ({"minutes": 1.0}, "one of the two"),
        ({"length": 4000}, "has 2,[0-9]+ tokens; at least 8,000 are needed"),
    ],
    ids=str,
)
def test_settings_that_cannot_be(settings, message, folder, tmp_path, words):
    own = {"length": 64, "pattern": WINDOW, "steps": 1} | settings
    with pytest.raises(WeftError, match=message):
        convert(folder, tmp_path / "out", Conversion(**own), train=words)


def test_a_decoder(tmp_path, words):
    folder = saved(llama, tmp_path / "llama")
    refused = {
        "later": "reads only later positions",
        "full()": "rotary base has to grow; give text to choose by",
    }
    later = "sliding(8) & ~causal()"
    for pattern, message in ((later, refused["later"]), ("full()", refused["full()"])):
        with pytest.raises(WeftError, match=message):
            convert(folder, tmp_path / "out", Conversion(length=64, pattern=pattern))
    body = hf.LlamaModel.from_pretrained(folder)
    body.save_pretrained(tmp_path / "body")
    with pytest.raises(WeftError, match="decoder without its output layer"):
        convert(tmp_path / "body", tmp_path / "out", Conversion(length=64, pattern=WINDOW))


def test_a_model_without_a_loss_is_not_trained(tmp_path, words):
    hf.BertModel(hf.BertConfig(**SIZES)).save_pretrained(tmp_path / "body")
    tokenizer().save_pretrained(tmp_path / "body")
    settings = Conversion(length=64, pattern=WINDOW, steps=1)
    with pytest.raises(WeftError, match="BertModel has no loss of its own"):
        convert(tmp_path / "body", tmp_path / "out", settings, train=words)
    settings = Conversion(length=64, pattern=WINDOW, rounds=0)
    found = convert(tmp_path / "body", tmp_path / "other", settings, held_out=words)
    assert not found.curves
    assert found.cosine is not None


def test_models_that_have_neither_kind_of_positions(tmp_path):
    sizes = {"vocab_size": 33, "d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1}
    hf.T5ForConditionalGeneration(hf.T5Config(**sizes, num_heads=4)).save_pretrained(
        tmp_path / "t5"
    )
    with pytest.raises(WeftError, match=r"no head|max_position_embeddings"):
        convert(tmp_path / "t5", tmp_path / "out", Conversion(length=64, pattern=WINDOW))


def test_a_place_that_is_taken(folder, tmp_path, words):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/letter.txt").write_text("mine")
    settings = Conversion(length=64, pattern=WINDOW, steps=1, rounds=0)
    with pytest.raises(WeftError, match="exists and is not empty"):
        convert(folder, tmp_path / "full", settings, train=words)
    convert(folder, tmp_path / "out", settings, train=words)
    with pytest.raises(WeftError, match=r"is finished: read .*report.html"):
        convert(folder, tmp_path / "out", settings, train=words)
    other = Conversion(length=64, pattern="sliding(9)", steps=1, rounds=0)
    with pytest.raises(WeftError, match="another conversion: it differs in pattern"):
        convert(folder, tmp_path / "out", other, train=words)


def run(*args):
    return CliRunner().invoke(app, ["convert", *map(str, args)])


def test_the_verb(folder, tmp_path, words):
    given = ["--length", 64, "--pattern", WINDOW, "--layer", "1=full()", "--train", words]
    done = run(folder, tmp_path / "out", *given, "--steps", 2, "--rounds", 0, "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "report.html" in done.output
    told = json.loads((tmp_path / "out/config.json").read_text())["weft"]
    assert told["patterns"] == {"*": "sliding(window=8)", "1": "full()"}
    shown = (tmp_path / "out/README.md").read_text()
    assert "--layer '1=full()' --train" in shown
    done = run(folder, tmp_path / "new", *given, "--steps", 2, "--layer", "full()")
    assert done.exit_code == 2
    done = run(tmp_path / "nothing", tmp_path / "new", *given, "--steps", 2)
    assert done.exit_code == 1
    assert "there is no folder" in done.output
    assert not (tmp_path / "new/config.json").exists()
