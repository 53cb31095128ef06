"""The mask token of a checkpoint is the model's: it fills gaps, is trained on, saved, exported."""

import json

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer
from tokenizers import models as kinds

import weft
from models import TINY, VOCAB
from weft.cli import app
from weft.errors import WeftError
from weft.interop.hf import export, load
from weft.models import fill_mask
from weft.objectives import Batch, MaskedLM

WORDS = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
WORDS |= {f"w{i}": i for i in range(5, VOCAB)}
SPECIAL = [word for word in WORDS if word.startswith("[")]


def words(special=SPECIAL, mask="[MASK]"):
    """A tokenizer of words."""
    table = {(mask if word == "[MASK]" else word): at for word, at in WORDS.items()}
    made = Tokenizer(kinds.WordLevel(table, unk_token="[UNK]"))
    from tokenizers import pre_tokenizers

    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([mask if word == "[MASK]" else word for word in special])
    return made


@pytest.fixture
def theirs():
    return TINY["BERT"].build(torch.float32)


@pytest.fixture
def folder(tmp_path, theirs):
    """A checkpoint of BERT with its tokenizer."""
    theirs.save_pretrained(tmp_path / "bert")
    words().save(str(tmp_path / "bert" / "tokenizer.json"))
    return tmp_path / "bert"


def test_gaps_are_filled_as_transformers_fills_them(folder, theirs, tmp_path):
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), mask_token="[MASK]", pad_token="[PAD]"
    )
    text = "w7 w9 [MASK] w11 w6"
    pipe = hf.pipeline("fill-mask", theirs, tokenizer=tokenizer, top_k=3)
    expected = pipe(text)
    weft.save(load(folder), tmp_path / "saved")
    model = weft.load(tmp_path / "saved")
    assert model.mask == 4
    found = fill_mask(model, torch.tensor([tokenizer(text)["input_ids"]]), top=4)
    # Transformers may answer with the mask token itself, weft does not.
    answers = [each for each in expected if each["token"] != 4]
    assert found.tokens[0, : len(answers)].tolist() == [each["token"] for each in answers]
    exported = export(tmp_path / "saved", tmp_path / "out")
    ours = hf.pipeline("fill-mask", str(exported), top_k=3)(text)
    assert [each["token"] for each in ours] == [each["token"] for each in expected]
    for one, other in zip(ours, expected, strict=True):
        assert one["score"] == pytest.approx(other["score"], rel=1e-4)
    assert 'pipeline("fill-mask"' in (exported / "README.md").read_text().replace("'", '"')


def test_training_hides_behind_it(folder, monkeypatch):
    model, shown = load(folder), []
    model.trunk.register_forward_pre_hook(lambda module, given: shown.append(given[0]))
    ids = torch.randint(5, VOCAB, (20, 30), generator=torch.Generator().manual_seed(1))
    objective = MaskedLM(masked=1.0, random=0.0, rate=0.3)
    loss = objective.loss(model, Batch(x=ids), torch.Generator().manual_seed(0))
    assert int((shown[0] == 4).sum()) == int(loss.count) > 100
    assert not (shown[0] == VOCAB - 1)[ids != VOCAB - 1].any()


def described(folder, name, said):
    words(mask="<hide>").save(str(folder / "tokenizer.json"))
    (folder / name).write_text(json.dumps({"mask_token": said}))


CASES = {
    "the config": lambda f: (f / "config.json").write_text(
        json.dumps(json.loads((f / "config.json").read_text()) | {"mask_token_id": 9})
    ),
    "tokenizer_config.json": lambda f: described(f, "tokenizer_config.json", "<hide>"),
    "special_tokens_map.json": lambda f: described(
        f, "special_tokens_map.json", {"content": "<hide>", "lstrip": True}
    ),
    "a word of no special kind": lambda f: words(special=()).save(str(f / "tokenizer.json")),
    "no tokenizer": lambda f: (f / "tokenizer.json").unlink(),
    "an old vocabulary": lambda f: (
        (f / "tokenizer.json").unlink(),
        (f / "vocab.txt").write_text("\n".join(WORDS)),
    ),
}
EXPECTED = [9, 4, 4, None, None, 4]


@pytest.mark.parametrize(("case", "expected"), list(zip(CASES, EXPECTED, strict=True)))
def test_where_it_is_said(folder, case, expected):
    CASES[case](folder)
    model = load(folder)
    assert model.config.mask_id == expected
    if expected is None:
        with pytest.raises(WeftError, match=r"without a mask token.*--mask-id"):
            _ = model.mask
        assert load(folder, mask_id=6).mask == 6


def test_models_in_memory(theirs, folder):
    assert load(theirs).config.mask_id is None
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), mask_token="[MASK]"
    )
    model = load(theirs, tokenizer=tokenizer)
    assert model.mask == 4
    assert json.loads(model.usage.tokenizer)["model"]["vocab"] == WORDS


def test_the_verb_takes_it(folder, tmp_path):
    from typer.testing import CliRunner

    (folder / "tokenizer.json").unlink()
    given = ["import", "hf", str(folder), str(tmp_path / "out"), "--mask-id", "6"]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.output
    assert weft.load(tmp_path / "out").mask == 6


def test_bad_ids(folder, theirs):
    with pytest.raises(WeftError, match="one of the 50 ids of the checkpoint; got 50"):
        load(folder, mask_id=50)
    with pytest.raises(WeftError, match="leave it out"):
        load(folder, head="Model", mask_id=4)
    with pytest.raises(WeftError, match="a folder has its tokenizer in it"):
        load(folder, tokenizer=object())
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(WeftError, match=r"tokenizer\.json is not a tokenizer"):
        load(folder)


def test_bytes_have_one_behind_them(tmp_path):
    """A model of weft's own: bytes, then the mask token, then padding."""
    from weft.models.usage.record import Usage

    trunk = weft.Encoder(
        embedding=weft.Embedding(vocab=256),
        stack=weft.Stack(frame=weft.Frame(dim=16, heads=2), order="sf"),
    )
    model = MaskedLM().build(trunk).build()
    model.usage = Usage(kind="masked_lm", tokens="bytes")
    weft.save(model, tmp_path / "saved")
    pipe = hf.pipeline("fill-mask", str(export(tmp_path / "saved", tmp_path / "out")), top_k=2)
    assert (pipe.tokenizer.mask_token_id, pipe.tokenizer.pad_token_id) == (256, 257)
    found = pipe(f"a b{pipe.tokenizer.mask_token}d")
    own = model.eval()(torch.tensor([[97, 32, 98, 256, 100]]))[0, 3].detach().softmax(-1)
    assert found[0]["score"] == pytest.approx(float(own.max()), rel=1e-4)
    assert found[0]["token"] == int(own.argmax())
