"""The looks at Retrieval: counts see a shared word, pairs are as labelled, rates as released."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from weft.arena.data.examples import Examples, TokenRows

PATH = Path(__file__).parents[2] / "benchmarks" / "cases" / "retrieval_pairs.py"
SPEC = importlib.util.spec_from_file_location("retrieval_pairs", PATH)
SCRIPT = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(SCRIPT)


@pytest.mark.parametrize("width", [1, 3])
def test_documents_alike_have_the_larger_cosine(width):
    texts = [b"attention is dense", b"dense is attention", b"zygote quick jumps", b"vow by fog"]
    rows = TokenRows.of(texts, pick=np.array([0, 0, 2]))
    second = TokenRows.of(texts, pick=np.array([1, 2, 3]))
    examples = Examples(rows, 20, labels=np.array([1, 0, 0]), second=second)
    cosines, labels = SCRIPT.cosines(examples, np.arange(3), width)
    assert cosines.argmax() == labels.argmax() == 0


def test_documents_that_are_always_cited_give_pairs_away_and_others_do_not():
    def pairs(first, second, labels):
        rows = [
            TokenRows.of([b"a", b"b", b"c", b"d"], pick=np.array(own)) for own in (first, second)
        ]
        return Examples(rows[0], 9, labels=np.array(labels), second=rows[1])

    cited = pairs([0, 0, 2, 2], [1, 1, 3, 3], [1, 1, 0, 0])
    assert SCRIPT.alone(cited, cited) == 1.0
    even = pairs([0, 1, 2, 3], [1, 0, 3, 2], [1, 0, 1, 0])
    assert SCRIPT.alone(even, even) == 0.5


def test_counts_are_of_runs_of_bytes():
    document = np.frombuffer(b"abab", dtype=np.uint8)
    assert SCRIPT.counted(document, 1)[[97, 98, 99]].tolist() == [2, 2, 0]
    assert sorted(SCRIPT.counted(document, 2).tolist())[-2:] == [1, 2]  # ab twice, ba once


def test_pairs_share_their_rare_token_exactly_where_the_label_says():
    first, second, label = SCRIPT.made_pairs(40, 3, torch.Generator().manual_seed(0))
    rare = [each.where(each >= SCRIPT.COMMON, 0).amax(1) for each in (first, second)]
    assert torch.equal(rare[0] == rare[1], label == 1)
    assert ((first >= SCRIPT.COMMON).sum(1) == 3).all()
    assert label.float().mean() == 0.5


def test_the_released_rate_is_that_of_the_recipe():
    assert SCRIPT.rate(5000, "release") == pytest.approx(3.49e-4, rel=1e-2)
    assert SCRIPT.rate(50, "1e-3") == pytest.approx(5e-4)


def test_training_runs(capsys):
    assert 0 <= SCRIPT.learn("first", "release", steps=2) <= 1
    assert "update 2" in capsys.readouterr().out
