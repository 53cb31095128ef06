"""Spans: counts, even cuts, the round trip of inputs and targets, T5's own figures, ByT5's ids."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_parts import VOCAB, rows, trunk

from weft.errors import WeftError
from weft.objectives import Batch, SpanCorruption
from weft.objectives.byt5 import from_byt5, to_byt5
from weft.objectives.span_corruption import restored
from weft.objectives.targets.spans import Widths, noise_spans, random_parts, span_counts


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def corrupted(objective, ids, valid, seed=0, first=1000):
    """Rows of (text, input, target), without padding."""
    (source, source_valid), (target, target_valid) = objective.corrupt(
        ids, valid, first, generator(seed)
    )
    return [
        (ids[row][valid[row]], source[row][source_valid[row]], target[row][target_valid[row]])
        for row in range(len(ids))
    ]


def check_round_trip(text, source, target, first, sentinels):
    assert restored(source, target, first, sentinels).tolist() == text.tolist()
    marks = [token for token in source.tolist() if token >= first]
    assert marks == [token for token in target.tolist() if token >= first]
    assert marks == list(range(first, first + len(marks)))
    assert len(source) + len(target) == len(text) + 2 * len(marks)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    rate=st.sampled_from([0.05, 0.15, 0.5, 0.9]),
    mean=st.sampled_from([1.0, 3.0, 20.0]),
    seed=st.integers(0, 99),
)
def test_inputs_and_targets_hold_the_text(lengths, rate, mean, seed):
    width = max(lengths)
    ids = torch.randint(500, (len(lengths), width), generator=generator(seed))
    valid = torch.arange(width) < torch.tensor(lengths)[:, None]
    objective = SpanCorruption(rate=rate, mean=mean)
    for text, source, target in corrupted(objective, ids, valid, seed):
        check_round_trip(text, source, target, 1000, 100)
        hidden = len([token for token in target if token < 1000])
        n = len(text)
        assert hidden == max(1, min(int(n * rate + 0.5), n - 1))
        if n > 1:
            assert source[0] < 1000  # a text begins with what stays


def test_the_round_trip_bites():
    ids = torch.arange(20)[None]
    ((text, source, target),) = corrupted(SpanCorruption(rate=0.5), ids, ids >= 0)
    with pytest.raises(AssertionError):
        check_round_trip(text, source, target[:-1], 1000, 100)
    with pytest.raises(AssertionError):
        check_round_trip(text, source.flip(0), target, 1000, 100)


def test_padding_may_stand_anywhere():
    ids = torch.tensor([[7, 0, 1, 2, 0, 3, 4, 5, 6, 7]])
    valid = torch.tensor([[1, 0, 1, 1, 0, 1, 1, 1, 1, 0]]).bool()
    for text, source, target in corrupted(SpanCorruption(rate=0.4), ids, valid):
        check_round_trip(text, source, target, 1000, 100)


def test_t5s_figures():
    """512 tokens: 77 are hidden in 26 spans (15 %, mean 3); ByT5: 1,024 bytes, 8 spans of 20."""
    assert span_counts(torch.tensor(512), 0.15, 3.0) == (77, 26)
    assert span_counts(torch.tensor(1024), 0.15, 20.0) == (154, 8)
    assert span_counts(torch.tensor(0), 0.15, 3.0) == (0, 0)


def test_spans_have_their_mean():
    lengths = torch.full((300,), 200)
    noise = noise_spans(lengths, 0.15, 3.0, Widths.of(200, 0.15, 3.0), generator())
    opens = noise & ~torch.nn.functional.pad(noise[:, :-1], (1, 0))
    assert (noise.sum(1) == 30).all()
    assert (opens.sum(1) == 10).all()
    starts = opens[:, :].float().mean(0)
    assert starts[20:180].std() < 0.03  # nowhere in particular


def test_cuts_are_even():
    """5 tokens in 3 parts: each of the 6 ways as often as any other."""
    many = 12_000
    found = random_parts(torch.full((many,), 5), torch.full((many,), 3), 8, 4, generator())
    ways, counts = found.unique(dim=0, return_counts=True)
    truth = [(a, b - a, 5 - b, 0) for a in range(1, 4) for b in range(a + 1, 5)]
    assert sorted(map(tuple, ways.tolist())) == sorted(truth)
    assert (counts / many - 1 / 6).abs().max() < 0.02


def test_the_loss_is_that_of_the_targets():
    """Token by token, each row alone and without padding."""
    objective, batch = SpanCorruption(rate=0.4, sentinels=9), rows()
    torch.manual_seed(0)
    model = objective.build(trunk()).build().double()
    loss = objective.loss(model, batch, generator(3))
    end, start = VOCAB + 9, VOCAB + 10
    total = count = 0
    for _, source, target in corrupted(objective, batch.x, batch.valid, 3, VOCAB):
        said = [*target.tolist(), end]
        for before, token in pairwise(range(len(said) + 1)):
            shown = torch.tensor([[start, *said[:before]]])
            log = model(shown, source=source[None])[0, -1].log_softmax(-1)
            total -= log[said[token - 1]].item()
            count += 1
    assert int(loss.count) == count
    assert loss.total.item() == pytest.approx(total, rel=1e-9)


def test_empty_rows_teach_nothing():
    objective = SpanCorruption(sentinels=3)
    model = objective.build(trunk()).build().double()
    ids = torch.zeros(1, 4, dtype=torch.long)
    batch = Batch(x=ids, valid=torch.zeros(1, 4, dtype=torch.bool))
    loss = objective.loss(model, batch, generator())
    assert (loss.total.item(), int(loss.count)) == (0.0, 0)


def test_too_few_sentinels_are_refused():
    ids = torch.zeros(1, 64, dtype=torch.long)
    with pytest.raises(WeftError, match="each needs a sentinel"):
        SpanCorruption(sentinels=2).corrupt(ids, None, 10, generator())
    for wrong in ({"rate": 1.0}, {"mean": 0.5}, {"sentinels": 0}, {"smoothing": 1.0}):
        with pytest.raises(WeftError):
            SpanCorruption(**wrong)
    with pytest.raises(WeftError, match="begins with a sentinel"):
        restored(torch.tensor([1]), torch.tensor([1]), 10, 5)


def test_byt5s_ids():
    assert to_byt5(torch.tensor(list("aé".encode())), 125).tolist() == [100, 198, 172]
    ours = torch.arange(256 + 125 + 2)
    theirs = to_byt5(ours, 125)
    assert theirs.tolist() == [*range(3, 384), 1, 0]  # bytes, sentinels, end, start
    assert from_byt5(theirs, 125).tolist() == ours.tolist()
    with pytest.raises(WeftError, match="is not an id of this model"):
        from_byt5(torch.tensor([2]), 125)
    with pytest.raises(WeftError, match="ids run from 0"):
        to_byt5(torch.tensor([400]), 125)


def test_byt5s_tokenizer_agrees():
    transformers = pytest.importorskip("transformers", reason="parity with its implementation")
    tokenizer = transformers.ByT5Tokenizer()
    text = "to <extra_id_0> or é<extra_id_1>"
    ours = [*b"to ", 256, *b" or ", *"é".encode(), 257, 256 + 125]
    assert to_byt5(torch.tensor(ours), 125).tolist() == tokenizer(text).input_ids
