"""Rows of a user's text: nothing lost but the last piece, and no row in both parts."""

import json

import pytest
import torch
from long_models import text, tokenizer

from weft.errors import WeftError
from weft.interop.hf.dense_to_long.text import (
    Ends,
    ends_of,
    read_documents,
    rows_of,
    split_rows,
    tokens_of,
)

WRAPS, PLAIN = tokenizer(), tokenizer(wraps=False)


def test_special_tokens_around_a_text():
    assert ends_of(WRAPS) == Ends(2, 3)
    assert ends_of(PLAIN) == Ends()
    body = torch.arange(5)
    row = Ends(2, 3).around(body)
    assert row.tolist() == [2, 0, 1, 2, 3, 4, 3]
    assert row[Ends(2, 3).inside(row)].tolist() == body.tolist()
    assert Ends(None, 3).around(body).tolist() == [0, 1, 2, 3, 4, 3]


def test_documents_of_a_rows_length_are_cut_by_themselves():
    texts = ["a" * 25, "b" * 7, "c" * 12]
    rows = rows_of(tokens_of(texts, WRAPS), 12, WRAPS, ends_of(WRAPS))
    shown = [WRAPS.decode(row).replace(" ", "") for row in rows]
    inner = ["a" * 10, "a" * 10, "c" * 10, "aaaaa[SEP]bbbb"]
    assert shown == [f"[CLS]{part}[SEP]" for part in inner]
    plain = rows_of(tokens_of(texts, PLAIN), 12, PLAIN, Ends())
    assert [len(row) for row in plain] == [12, 12, 12]


def test_files_folders_and_lines(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/one.txt").write_text("one")
    (tmp_path / "two.jsonl").write_text('{"text": "two"}\n{"text": "three"}\n')
    (tmp_path / "other.bin").write_bytes(b"\xff")
    assert read_documents(tmp_path) == ["one", "two", "three"]
    (tmp_path / "bad.jsonl").write_text('{"text": "two"}\n{"texts": 3}\n')
    with pytest.raises(WeftError, match=r"bad.jsonl, line 2: a line is"):
        read_documents(tmp_path)
    with pytest.raises(WeftError, match="there is no text"):
        read_documents(tmp_path / "nothing.txt")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(WeftError, match="is not UTF-8"):
        read_documents(tmp_path / "latin.txt")


def test_whole_documents_are_held_out(tmp_path):
    path = tmp_path / "texts.jsonl"
    letters = "abcdefghij"
    path.write_text("".join(json.dumps({"text": one * 100}) + "\n" for one in letters))
    found = split_rows(path, None, PLAIN, 20, 5, 0)
    train, held = (set(rows.unique().tolist()) for rows in (found.train, found.held))
    assert held
    assert train
    assert not held & train, "a document is in one part alone"
    assert "documents, drawn by seed 0" in found.note
    assert len(found.held) == 5
    other = split_rows(path, None, PLAIN, 20, 5, 1)
    assert set(other.held.unique().tolist()) != held


def test_of_one_document_the_end_is_held_out(tmp_path):
    path = tmp_path / "one.txt"
    path.write_text(text(100))
    found = split_rows(path, None, PLAIN, 64, 4, 0)
    ids = tokens_of([text(100)], PLAIN)[0]
    count = found.held.numel()
    assert torch.equal(found.held.flatten(), ids[-count:])
    assert found.train.numel() + count <= len(ids)
    assert "the end of the text" in found.note


def test_too_little_text_is_said(tmp_path):
    path = tmp_path / "one.txt"
    path.write_text("a" * 100)
    with pytest.raises(WeftError, match="has 100 tokens; at least 120 are needed"):
        split_rows(path, None, PLAIN, 60, 4, 0)
    path.write_text("a" * 120)
    found = split_rows(path, None, PLAIN, 60, 4, 0)
    assert (len(found.train), len(found.held)) == (1, 1)
