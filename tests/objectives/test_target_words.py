"""Whole words: which tokens go together, and that they are hidden together."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from objective_parts import trunk

from weft.errors import WeftError
from weft.objectives import Batch, MaskedLM
from weft.objectives.masked_lm import Hidden
from weft.objectives.targets.words import word_numbers

HIDDEN = Hidden(256, 257)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def numbers_of(text, words="bytes", valid=None):
    ids = torch.tensor([list(text.encode())])
    return word_numbers(Batch(x=ids), ids, valid, words)[0].tolist()


def units(text):
    """White-space bytes one by one, and what stands between them."""
    found = []
    for byte in text.encode():
        alone = bytes([byte]) in b" \t\n\r\x0b\x0c"
        if not found or alone or found[-1][1]:
            found.append([0, alone])
        found[-1][0] += 1
    return [size for size, _ in found]


@given(st.text(alphabet="ab é\n\t,", min_size=1, max_size=30))
def test_words_of_bytes(text):
    truth = [word for word, size in enumerate(units(text)) for _ in range(size)]
    assert numbers_of(text) == truth


def test_an_example():
    assert numbers_of("to be  ok") == [0, 0, 1, 2, 2, 3, 4, 5, 5]


def test_padding_does_not_split_words():
    ids = torch.tensor([[0, 97, 0, 98, 32, 99, 0]])
    valid = torch.tensor([[False, True, False, True, True, True, False]])
    found = word_numbers(Batch(x=ids), ids, valid, "bytes")[0]
    assert found[valid[0]].tolist() == [0, 0, 1, 2]


def test_words_are_hidden_whole():
    text = b"the quick brown fox jumps over the lazy dog again and again "
    ids = torch.tensor([list(text)] * 200)
    numbers = word_numbers(Batch(x=ids), ids, None, "bytes")
    _, chosen = MaskedLM(rate=0.3).corrupt(ids, None, HIDDEN, generator(), numbers)
    for row in range(0, 200, 20):
        for word in range(int(numbers.max()) + 1):
            assert len(set(chosen[row][numbers[row] == word].tolist())) == 1
    assert chosen.float().mean().item() == pytest.approx(0.3, abs=0.02)
    _, single = MaskedLM(rate=0.3).corrupt(ids, None, HIDDEN, generator())
    split = [len(set(single[0][numbers[0] == word].tolist())) for word in range(24)]
    assert max(split) == 2  # what the check above would find


def test_the_loss_uses_them():
    ids = torch.tensor([list(b"abc de fg"), list(b"a bcde fg")])
    batch = Batch(x=ids)
    torch.manual_seed(0)
    objective = MaskedLM(rate=0.5, words="bytes")
    model = objective.build(trunk(vocab=256)).build()
    loss = objective.loss(model, batch, generator(2))
    numbers = word_numbers(batch, ids, None, "bytes")
    _, chosen = objective.corrupt(ids, None, HIDDEN, generator(2), numbers)
    assert int(loss.count) == int(chosen.sum()) > 0


def test_words_given_by_the_batch():
    ids = torch.tensor([[5, 6, 7, 8]])
    batch = Batch(x=ids, words=torch.tensor([[40, 40, 3, 40]]))
    assert word_numbers(batch, ids, None, "given").tolist() == [[0, 0, 2, 0]]
    with pytest.raises(WeftError, match=r"Batch\.words"):
        word_numbers(Batch(x=ids), ids, None, "given")


TOKENIZERS = {
    "wordpiece": ({"un": 0, "##do": 1, "it": 2}, [0, 1, 2, 2, 1, 3], [0, 0, 1, 2, 2, 3]),
    "bpe": ({"Ġun": 0, "do": 1, "Ġit": 2}, [0, 1, 2, 3, 1], [0, 0, 1, 2, 2]),
    "unigram": ([["▁un", -1.0], ["do", -2.0], ["▁it", -3.0]], [1, 0, 1, 2], [0, 1, 1, 2]),
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_words_of_a_tokenizer(kind, tmp_path):
    vocab, ids, truth = TOKENIZERS[kind]
    path = tmp_path / "tokenizer.json"
    special = [{"id": 3, "content": "<s>"}]
    path.write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": special}))
    given_ids = torch.tensor([ids])
    found = word_numbers(Batch(x=given_ids), given_ids, None, str(path))
    assert found.tolist() == [truth]
    with pytest.raises(WeftError, match="has 4 tokens"):
        word_numbers(Batch(x=given_ids), given_ids + 4, None, str(path))


def test_words_of_the_tokenizers_package(tmp_path):
    """Their own word numbers, from the text, against ours, from the tokens alone."""
    tokenizers = pytest.importorskip("tokenizers", reason="comes with weft[data]")
    made = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(
            {"[UNK]": 0, "un": 1, "##do": 2, "##ing": 3, "it": 4}, unk_token="[UNK]"
        )
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    encoded = made.encode("undoing it un undo it")
    ids = torch.tensor([encoded.ids])
    assert word_numbers(Batch(x=ids), ids, None, str(path)).tolist() == [encoded.word_ids]


def test_a_tokenizer_that_does_not_say(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"model": {"vocab": {"a": 0, "b": 1}}}))
    ids = torch.tensor([[0, 1]])
    with pytest.raises(WeftError, match="do not say where words begin"):
        word_numbers(Batch(x=ids), ids, None, str(path))
    with pytest.raises(WeftError, match="'tokens', 'bytes', 'given' or"):
        word_numbers(Batch(x=ids), ids, None, str(tmp_path / "none.json"))
