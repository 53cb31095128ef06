"""Beam search against exhaustive search, greedy decoding and the Transformers library."""

from dataclasses import dataclass, replace
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_model import Toy, greedy, quick

from weft.generate import Beams, Decoding, beam_search

END = 0


def exhaustive(model, prompt, new, alpha):
    """Every continuation that ends or is as long as allowed, the best score first."""
    found = {}
    for tokens in product(range(model.vocab), repeat=new):
        size = tokens.index(END) + 1 if END in tokens else new
        found[tokens[:size]] = None
    scored = []
    for tokens in found:
        total = 0.0
        for at, token in enumerate(tokens):
            total += float(model.scores([*prompt, *tokens[:at]]).log_softmax(-1)[token])
        scored.append((total / ((5 + len(tokens)) / 6) ** alpha, tokens))
    return sorted(scored, reverse=True)


def searched(model, prompts, new, beams):
    return beam_search(model, torch.tensor(prompts), new, [END], beams, {})


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("prompt", [[1, 2], [3, 1], [2, 2]], ids=str)
def test_a_wide_beam_is_exhaustive(prompt, alpha):
    model, new = Toy(4, sharp=1.0), 4
    truth = exhaustive(model, prompt, new, alpha)
    (got,) = searched(model, [prompt], new, Beams(width=len(truth), length_penalty=alpha))
    assert len(got) == len(truth)
    for hypothesis, (score, tokens) in zip(got, truth, strict=True):
        assert hypothesis.tokens == tokens
        assert hypothesis.score == pytest.approx(score, abs=1e-9)


def test_the_length_penalty_matters():
    model = Toy(4, sharp=1.0)
    prompts = [[a, b] for a in range(4) for b in range(4)]
    best = [{exhaustive(model, p, 3, alpha)[0][1] for alpha in (0.0, 2.0)} for p in prompts]
    assert max(map(len, best)) == 2


@quick
@given(prompt=st.lists(st.integers(0, 5), min_size=1, max_size=4), new=st.integers(0, 6))
def test_one_beam_is_greedy(prompt, new):
    model = Toy(6)
    (got,) = model.generate([torch.tensor(prompt)], new, stop=END, beams=1)
    assert got.tolist() == greedy(model, prompt, new, (END,))


def test_a_wider_beam_finds_better_text():
    model, better = Toy(6, sharp=1.0), 0
    for first in range(6):
        narrow, wide = (searched(model, [[first]], 5, Beams(width=w))[0][0] for w in (1, 8))
        assert wide.score >= narrow.score - 1e-12
        better += wide.score > narrow.score
    assert better > 2


def test_rows_of_a_batch_are_the_rows_alone():
    model, prompts = Toy(6, sharp=1.0), [[1, 2], [3, 4], [5, 0]]
    together = searched(model, prompts, 6, Beams())
    assert together == [searched(model, [prompt], 6, Beams())[0] for prompt in prompts]
    ragged = [torch.tensor(row) for row in ([1, 2], [3], [5, 0])]
    got = model.generate(ragged, 6, stop=END, beams=4)
    for row, prompt in zip(got, ragged, strict=True):
        assert torch.equal(row, model.generate([prompt], 6, stop=END, beams=4)[0])


@dataclass
class Written:
    ids: torch.Tensor
    source: torch.Tensor

    def select(self, rows):
        return replace(self, ids=self.ids[rows], source=self.source[rows])


class Foreign(Decoding):
    """An encoder-decoder of the Transformers library; every step is a whole forward."""

    def __init__(self, model):
        self.model, self.device = model, torch.device("cpu")

    def start(self, batch, *, source, source_valid=None):
        return Written(torch.zeros(batch, 0, dtype=torch.long), source)

    def step(self, ids, state):
        ids = torch.cat((state.ids, ids), dim=1)
        found = self.model(input_ids=state.source, decoder_input_ids=ids, use_cache=False)
        return found.logits, replace(state, ids=ids)


@dataclass(frozen=True, kw_only=True)
class TheirPenalty(Beams):
    def score(self, log_probability, tokens):
        return log_probability / tokens**self.length_penalty


@pytest.fixture(scope="module")
def t5():
    library = pytest.importorskip("transformers", reason="parity with its implementation")
    config = library.T5Config(
        vocab_size=12,
        d_model=16,
        d_kv=8,
        d_ff=24,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=1,
    )
    model = library.T5ForConditionalGeneration(config).double().eval()
    # A draw in which the texts of sources differ, and some of them end early.
    torch.manual_seed(23)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.5)
    return model


@pytest.mark.parametrize(("width", "penalty"), [(2, 0.0), (4, 0.0), (4, 1.0), (3, 2.0)])
def test_equals_the_transformers_library(t5, width, penalty):
    source = torch.randint(2, 12, (12, 5), generator=torch.Generator().manual_seed(3))
    theirs = t5.generate(
        source,
        max_new_tokens=8,
        num_beams=width,
        do_sample=False,
        early_stopping=True,
        length_penalty=penalty,
        attention_mask=torch.ones_like(source),
    )
    beams = TheirPenalty(width=width, length_penalty=penalty)
    start = torch.zeros(12, 1, dtype=torch.long)
    ours = Foreign(t5).generate(start, 8, stop=1, beams=beams, source=source)
    assert theirs.shape[1] <= ours.shape[1]
    texts = set()
    for mine, other in zip(ours.tolist(), theirs.tolist(), strict=True):
        mine, other = cut(mine), cut(other)
        assert mine == other
        texts.add(tuple(mine))
    assert len(texts) > 5
    assert len({len(text) for text in texts}) > 1


def cut(row):
    """Up to the token that ends it: what follows is padding."""
    return row[: row.index(1) + 1] if 1 in row else row
