"""`weft generate`: from a folder and a prompt to text."""

import json

import pytest
import torch
from typer.testing import CliRunner

from weft.cli import app
from weft.layers.embedding import Embedding
from weft.mixers import Frame
from weft.models import (
    Classifier,
    Decoder,
    Encoder,
    EncoderDecoder,
    LanguageModel,
    Stack,
    load,
    save,
)

run = CliRunner().invoke


def config(kind=Decoder, vocab=256, positions="sinusoidal", order="sf"):
    frame = Frame(dim=16, heads=2, length=40)
    stack = Stack(frame=frame, order=order, mixer="full", cross="full")
    return kind(embedding=Embedding(vocab=vocab, positions=positions), stack=stack)


def saved(path, made):
    torch.manual_seed(3)
    model = made.build()
    for parameter in model.parameters():
        parameter.data.mul_(2.0)
    return str(save(model, path))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("models") / "bytes", LanguageModel(trunk=config()))


def greedy(folder, prompt, new):
    """By whole forwards, without the engine."""
    model, row = load(folder), torch.tensor(list(prompt.encode()))
    for _ in range(new):
        row = torch.cat((row, model(row[None])[0, -1].argmax()[None]))
    return bytes(row.tolist()).decode("utf-8", "replace")


def test_text_follows_the_prompt(folder):
    done = run(app, ["generate", folder, "--prompt", "Hello", "--max-new-tokens", "12"])
    assert done.exit_code == 0, done.output
    assert done.stdout == greedy(folder, "Hello", 12) + "\n"


def test_prompts_from_a_file_are_one_batch(folder, tmp_path):
    prompts = ["one", "three four", "é", "two"]
    (tmp_path / "prompts.txt").write_text("\n".join(prompts) + "\n", encoding="utf-8")
    args = ["generate", folder, "--batch-file", str(tmp_path / "prompts.txt")]
    done = run(app, [*args, "--max-new-tokens", "6", "--json"])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["row"] for row in rows] == [0, 1, 2, 3]
    for row, prompt in zip(rows, prompts, strict=True):
        assert row["prompt"] + row["text"] == greedy(folder, prompt, 6)
        assert (row["new_tokens"], row["ended_by"]) == (6, "length")
    plain = run(app, [*args, "--max-new-tokens", "6"]).stdout
    assert plain == "".join(greedy(folder, prompt, 6) + "\n" for prompt in prompts)
    piped = run(app, ["generate", folder, "--max-new-tokens", "6"], input="\n".join(prompts))
    assert piped.stdout == plain


def test_draws_repeat_with_the_seed(folder):
    args = ["generate", folder, "--prompt", "a", "--max-new-tokens", "30", "--temperature", "1"]
    filters = ["--top-k", "50", "--top-p", "0.95", "--min-p", "0.01", "--repetition-penalty", "1.2"]
    texts = {seed: run(app, [*args, *filters, "--seed", seed]).stdout for seed in ("1", "2")}
    assert texts["1"] != texts["2"]
    assert run(app, [*args, *filters, "--seed", "1"]).stdout == texts["1"]


def test_a_stop_string_ends_the_text(folder):
    whole = greedy(folder, "Hello", 20)[5:]
    stop = whole[4:6]
    args = ["generate", folder, "--prompt", "Hello", "--max-new-tokens", "20"]
    row = json.loads(run(app, [*args, "--stop", stop, "--json"]).stdout)
    assert row["text"] == whole[: whole.index(stop)]
    assert row["ended_by"] == "string"


def test_a_tokenizer_file(tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="comes with weft[data]")
    words = {word: i for i, word in enumerate(["a", "b", "c", "d"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="a"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "words.json"))
    small = saved(tmp_path / "small", LanguageModel(trunk=config(vocab=4)))
    args = ["generate", small, "--prompt", "b c", "--max-new-tokens", "5"]
    done = run(app, [*args, "--tokenizer", str(tmp_path / "words.json")])
    assert done.exit_code == 0, done.output
    assert len(done.stdout.split()) == 7
    assert set(done.stdout.split()) <= set(words)
    refused = run(app, args)
    assert refused.exit_code == 1
    assert "the model has 4 tokens and the text 256" in refused.output


def test_a_run_of_train(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("to be or not to be. " * 40)
    settings = (
        "task = \"language(length=16, folder='book.txt')\"\n"
        "[model]\nlayers = 1\ndim = 16\nheads = 2\n"
        "[training]\nsteps = 2\nbatch = 4\ndevice = 'cpu'\n"
    )
    (tmp_path / "own.toml").write_text(settings)
    done = run(app, ["train", "own.toml"])
    assert done.exit_code == 0, done.output
    done = run(app, ["generate", "runs/own", "--prompt", "to", "--max-new-tokens", "5"])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("to")


def test_native_gives_the_same_text(folder, tmp_path):
    native = pytest.importorskip("weft.native", reason="needs the library")
    if native.available() is not None:
        pytest.skip(native.available())
    (tmp_path / "p.txt").write_text("one\nthree four\ntwo\n")
    args = ["--batch-file", str(tmp_path / "p.txt"), "--max-new-tokens", "9"]
    plain = run(app, ["generate", folder, *args, "--torch"]).stdout
    done = run(app, ["generate", folder, *args, "--native"])
    assert done.exit_code == 0, done.output
    assert done.stdout == plain
    exported = native.export(load(folder), tmp_path / "native")
    assert run(app, ["generate", str(exported), *args]).stdout == plain


def test_refuses_what_cannot_write(folder, tmp_path):
    both = EncoderDecoder(encoder=config(Encoder), decoder=config(order="scf"))
    folders = {
        "a Classifier that reads both ways": Classifier(trunk=config(Encoder), classes=2),
        "a LanguageModel that reads both ways": LanguageModel(trunk=config(Encoder)),
        "an encoder-decoder, which needs a source": LanguageModel(trunk=both),
    }
    for message, made in folders.items():
        path = saved(tmp_path / message.split()[1], made)
        done = run(app, ["generate", path, "--prompt", "a"])
        assert done.exit_code == 1
        assert message in done.output


def test_refuses_a_prompt_beyond_the_positions(tmp_path):
    short = saved(tmp_path / "short", LanguageModel(trunk=config(positions="learned")))
    fits = run(app, ["generate", short, "--prompt", "x" * 30, "--max-new-tokens", "11"])
    assert fits.exit_code == 0, fits.output
    done = run(app, ["generate", short, "--prompt", "x" * 50, "--max-new-tokens", "1"])
    assert done.exit_code == 1
    assert "has 50 tokens, but there are learned positions for 40" in done.output


def test_refuses_broken_folders(folder, tmp_path):
    def message(path):
        done = run(app, ["generate", str(path), "--prompt", "a"])
        assert done.exit_code == 1, done.output
        assert done.exception is None or isinstance(done.exception, SystemExit)
        return done.output

    assert "there is no folder" in message(tmp_path / "nowhere")
    assert "is not a saved model" in message(tmp_path)
    broken = tmp_path / "broken"
    saved(broken, LanguageModel(trunk=config()))
    weights = (broken / "model.safetensors").read_bytes()
    for size in (0, 7, 100, len(weights) // 2, len(weights) - 1):
        (broken / "model.safetensors").write_bytes(weights[:size])
        assert "cannot be read, is it cut short?" in message(broken)
    (broken / "config.json").write_text("{")
    assert "is not valid JSON" in message(broken)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--prompt", ""], "--prompt has none at 1"),
        (["--prompt", "a", "--batch-file", "b"], "not from both"),
        (["--batch-file", "nowhere.txt"], "cannot read 'nowhere.txt'"),
        (["--prompt", "a", "--top-k", "5"], "give a temperature above 0"),
        (["--prompt", "a", "--stop", ""], "a stop string has at least one character"),
        ([], "stdin has none at 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refuses_wrong_calls(folder, args, message):
    done = run(app, ["generate", folder, *args])
    assert done.exit_code == 1
    assert message in done.output
