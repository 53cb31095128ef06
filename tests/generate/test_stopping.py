"""Stop strings and streams of text: nothing depends on where tokens cut the text."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_model import Toy, quick

from weft.errors import WeftError
from weft.generate import ByteText, Sampling, Stopping, TokenizerText
from weft.generate.stopping import HeldBack

LETTERS = st.text("abc", max_size=12)


def cut(text, strings):
    """The definition: read on until the text so far ends in a stop string, the longest such."""
    for end in range(1, len(text) + 1):
        found = [each for each in strings if text[:end].endswith(each)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


def pushed(pieces, held):
    """All text that comes out, and whether a stop string ended it."""
    out = ""
    for piece in pieces:
        certain, found = held.push(piece)
        out += certain
        if found:
            return out, True
    return out + held.end(), False


STRINGS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)


@quick
@given(pieces=st.lists(LETTERS, max_size=8), strings=STRINGS)
def test_any_split_gives_the_same_text(pieces, strings):
    assert pushed(pieces, HeldBack(strings)) == cut("".join(pieces), strings)


@quick
@given(pieces=st.lists(LETTERS, max_size=8), strings=STRINGS)
def test_text_is_held_back_no_longer_than_needed(pieces, strings):
    held, given_out, read = HeldBack(strings), "", ""
    for piece in pieces:
        certain, found = held.push(piece)
        given_out, read = given_out + certain, read + piece
        if found:
            return
        rest = read[len(given_out) :]
        assert rest == "" or any(each.startswith(rest) for each in strings)


class Eager(HeldBack):
    """Broken on purpose: looks at each piece alone."""

    def push(self, text):
        self._held = ""
        return super().push(text)


def test_the_check_bites():
    assert pushed(["xa", "by"], HeldBack(["ab"])) == ("x", True)
    assert pushed(["xa", "by"], Eager(["ab"])) != ("x", True)


@quick
@given(text=st.text(max_size=20), extra=st.binary(max_size=3))
def test_bytes_come_out_as_whole_characters(text, extra):
    data = text.encode() + extra
    writer = ByteText().writer()
    pieces = [writer.push(byte) for byte in data] + [writer.end()]
    assert "".join(pieces) == data.decode("utf-8", "replace")
    if not extra:
        assert [piece for piece in pieces if piece] == list(text)


def test_a_character_begun_in_the_prompt_is_written_whole():
    first, second = "é".encode()
    writer = ByteText().writer([65, first])
    assert writer.push(second) + writer.end() == "é"
    assert ByteText().writer([65]).end() == ""


def test_ids_beyond_bytes_are_refused():
    with pytest.raises(WeftError, match="a byte is 0 to 255; got the id 256"):
        ByteText().writer().push(256)


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory):
    tokenizers = pytest.importorskip("tokenizers", reason="comes with weft[data]")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=sorted(alphabet), show_progress=False
    )
    made.train_from_iterator(["the cat sat on the mat, the hat fell"] * 3, trainer)
    path = tmp_path_factory.mktemp("tokens") / "tokenizer.json"
    made.save(str(path))
    return path


@quick
@given(text=st.text(max_size=30))
def test_a_tokenizer_s_text_comes_out_whole(tokenizer_file, text):
    codec = TokenizerText(tokenizer_file)
    tokens = codec.encode(text)
    for first in range(len(tokens) + 1):
        if "\ufffd" in codec._tokenizer.decode(tokens[:first]):
            continue  # the prompt would end inside a character
        writer = codec.writer(tokens[:first])
        got = "".join(writer.push(token) for token in tokens[first:]) + writer.end()
        assert codec._tokenizer.decode(tokens[:first]) + got == text


def test_a_tokenizer_with_spaces_between_words(tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="comes with weft[data]")
    words = {"▁the": 0, "▁cat": 1, "s": 2}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="s"))
    made.decoder = tokenizers.decoders.Metaspace()
    made.save(str(tmp_path / "t.json"))
    codec = TokenizerText(tmp_path / "t.json")
    writer = codec.writer([0])
    assert [writer.push(token) for token in (1, 2, 0)] == [" cat", "s", " the"]
    made.add_special_tokens(["<end>"])  # a special token is text like any other
    made.save(str(tmp_path / "t.json"))
    assert TokenizerText(tmp_path / "t.json").writer().push(3) == "<end>"


@pytest.mark.parametrize(("name", "message"), [("none.json", "there is no"), ("bad.json", "is no")])
def test_refuses_what_is_no_tokenizer(tmp_path, name, message):
    pytest.importorskip("tokenizers", reason="comes with weft[data]")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(WeftError, match=message):
        TokenizerText(tmp_path / name)


@quick
@given(
    prompts=st.lists(st.binary(min_size=1, max_size=3), min_size=1, max_size=3),
    stop=st.sampled_from([None, 7, "e", "\ufffd\ufffd"]),
    seed=st.integers(0, 30),
)
def test_a_stream_joined_is_the_text(prompts, stop, seed):
    model, rows = Toy(256, sharp=1.0), [torch.tensor(list(row)) for row in prompts]
    sampling = Sampling(temperature=1.0, seed=seed)
    pieces = list(model.stream(rows, 6, text=ByteText(), sampling=sampling, stop=stop))
    got = model.generate(rows, 6, temperature=1.0, seed=seed, stop=stop, text=ByteText())
    for number, row in enumerate(rows):
        own = [piece for piece in pieces if piece.row == number]
        new = got[number][len(row) :].tolist()
        assert own[-1].tokens == tuple(new)
        assert [piece.reason is None for piece in own] == [True] * (len(own) - 1) + [False]
        shown = new[:-1] if new[-1] == stop else new
        # Bytes that complete a character of the prompt belong to the text.
        before = bytes(row.tolist()).decode("utf-8", "ignore")
        whole = (bytes(row.tolist()) + bytes(shown)).decode("utf-8", "replace")
        if isinstance(stop, str):
            assert stop not in "".join(piece.text for piece in own)
        elif before.encode() == bytes(row.tolist()):
            assert "".join(piece.text for piece in own) == whole[len(before) :]


def test_why_a_row_ended():
    model, rows = Toy(256), [torch.tensor([65])]
    free = model.generate(rows, 9)[0].tolist()
    letter = next(t for t in free[2:] if 31 < t < 127)

    def last(**settings):
        return list(model.stream(rows, 9, text=ByteText(), **settings))[-1]

    assert last().reason == "length"
    assert last(stop=letter).reason == "token"
    assert last(stop=chr(letter)).reason == "string"
    assert (last(stop=letter).tokens) == tuple(free[1 : free.index(letter, 1) + 1])
    nothing = list(model.stream(rows, 0, text=ByteText()))
    assert [(piece.text, piece.reason) for piece in nothing] == [("", "length")]


def test_several_stops_of_both_kinds():
    stopping = Stopping.at(5, [3, "x", 4, "yz"])
    assert (stopping.tokens, stopping.strings) == (frozenset({3, 4}), ("x", "yz"))
