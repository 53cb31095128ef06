"""Ragged batches are the rows alone, and the work is shared where it can be."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_model import History, Toy, greedy, quick

from weft.errors import WeftError
from weft.generate import ByteText, Engine, Stopping
from weft.generate.joining import CannotJoin, joined

PROMPTS = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5), min_size=1, max_size=5)


def rows_of(prompts):
    return [torch.tensor(row) for row in prompts]


@quick
@given(
    prompts=PROMPTS,
    new=st.integers(0, 7),
    end=st.integers(0, 6),
    chunk=st.sampled_from([None, 1, 2]),
    joins=st.booleans(),
)
def test_ragged_rows_are_the_rows_alone(prompts, new, end, chunk, joins):
    model = Toy(7, joins=joins)
    got = model.generate(rows_of(prompts), new, stop=end, prompt_chunk=chunk)
    assert [row.tolist() for row in got] == [greedy(model, row, new, (end,)) for row in prompts]


@quick
@given(prompts=PROMPTS, seed=st.integers(0, 99))
def test_ragged_draws_are_the_draws_alone(prompts, seed):
    model, settings = Toy(7), {"temperature": 1.3, "repetition_penalty": 1.4, "seed": seed}
    together = model.generate(rows_of(prompts), 5, **settings)
    for number, prompt in enumerate(prompts):
        # The row keeps its number: what stands before it is of no account.
        others = [torch.tensor([0])] * number
        alone = model.generate([*others, torch.tensor(prompt)], 5, **settings)[number]
        assert torch.equal(together[number], alone)


def test_a_forgotten_row_would_be_noticed():
    """The truth itself has teeth: another history gives another text."""
    model = Toy(7)
    texts = {tuple(greedy(model, [a, b], 6)[2:]) for a in range(7) for b in range(7)}
    assert len(texts) > 40


class Forgetful(History):
    """Broken on purpose: rows that leave take the wrong states with them."""

    def select(self, rows):
        return super().select(torch.arange(len(rows)))


def test_a_wrong_selection_would_be_noticed(monkeypatch):
    model, prompts = Toy(7), [[1, 2], [3, 4]]
    end = next(t for t in greedy(model, prompts[0], 4)[2:] if t not in greedy(model, prompts[1], 4))
    expected = [greedy(model, row, 6, (end,)) for row in prompts]
    assert [r.tolist() for r in model.generate(rows_of(prompts), 6, stop=end)] == expected
    monkeypatch.setattr("toy_model.History", Forgetful)
    assert [r.tolist() for r in model.generate(rows_of(prompts), 6, stop=end)] != expected


def test_prompts_are_read_in_parallel_and_rows_join():
    model = Toy(7)
    model.generate(rows_of([[1], [2, 3, 4], [5]]), 4)
    # Two rows of one token; two steps bring them to the long prompt, which is read at once and
    # joins; then three rows together, of which the early two end first.
    assert model.calls == [(2, 1), (2, 1), (2, 1), (1, 3), (3, 1), (1, 1), (1, 1)]


def test_states_that_do_not_fit_run_side_by_side():
    model = Toy(7, joins=False)
    model.generate(rows_of([[1], [2, 3, 4], [5]]), 4)
    assert (3, 1) not in model.calls


def test_a_prompt_in_chunks():
    model = Toy(7)
    model.generate(rows_of([[1, 2, 3, 4, 5]]), 2, prompt_chunk=2)
    assert model.calls == [(1, 2), (1, 2), (1, 1), (1, 1)]


def test_an_ended_row_costs_nothing_more():
    model, prompts = Toy(7), [[1, 2], [3, 4]]
    plain = greedy(model, prompts[0], 6)
    end = next(t for t in plain[2:] if t not in greedy(model, prompts[1], 6)[2:])
    model.generate(rows_of(prompts), 6, stop=end)
    alone = [calls for calls in model.calls if calls[0] == 1]
    assert len(alone) == 5 - (plain.index(end, 2) - 2)


def test_stop_strings_end_rows_of_bytes():
    model, prompts = Toy(256), [torch.tensor([65, 66]), torch.tensor([67])]
    free = model.generate(prompts, 12)
    text = bytes(free[0][2:].tolist()).decode("latin-1")
    stop = next(text[i : i + 2] for i in range(3, 9) if text[i : i + 2].isascii())
    got = model.generate(prompts, 12, stop=stop, text=ByteText())
    assert got[0].tolist() == free[0][: 2 + text.index(stop) + 2].tolist()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.generate([torch.tensor([1])], 2, stop="x"), "give text="),
        (lambda m: m.generate([torch.tensor([1])], 2, stop="", text=ByteText()), "empty"),
        (lambda m: m.generate([torch.tensor([1])], 2, prompt_chunk=0), "at least 1 token"),
        (lambda m: m.generate([torch.tensor([1])], 200), "at most 100 tokens; got 200"),
        (
            lambda m: m.generate([torch.tensor([1])], 2, beams=2, temperature=1.0),
            "without sampling",
        ),
        (lambda m: m.generate([torch.tensor([1])], 2, beams=2, stop="x"), "not strings"),
        (lambda m: m.generate([torch.tensor([1])], 2, beams=0), "beams is at least 1"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(WeftError, match=message):
        call(Toy(7, limit=100))


def test_sources_belong_to_rows():
    with pytest.raises(WeftError, match="one source for each prompt: got 2 and 1"):
        Engine(
            model=Toy(7),
            prompts=[torch.tensor([1])],
            stopping=Stopping(new_tokens=1),
            source={"source": torch.zeros(2, 3)},
        )


def test_joined_states():
    one, two = Toy(7).start(2), Toy(7).start(1)
    assert joined([one, two]).ids.shape == (3, 0)
    two.position = 1
    with pytest.raises(CannotJoin):
        joined([one, two])
    for pair in ([torch.ones(1, 2), torch.ones(1, 3)], [[1], [1, 2]], [torch.tensor(1.0)] * 2):
        with pytest.raises(CannotJoin):
            joined(pair)
    with pytest.raises(CannotJoin):
        joined([None, torch.ones(1)])
