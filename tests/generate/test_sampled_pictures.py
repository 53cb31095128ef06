"""Pictures from a model of pixels: the start is never drawn, beginnings stay, lengths are right."""

import pytest
import torch

from weft.errors import WeftError
from weft.generate import Engine, Sampling, Stopping, sample_pictures
from weft.layers.embedding import Embedding
from weft.mixers import Frame
from weft.models import Encoder, Stack
from weft.objectives import PixelLM

COLOURS, LENGTH = 5, 12


def model(bias=0.0):
    """A small model; `bias` raises the score of the start above all colours'."""
    torch.manual_seed(0)
    stack = Stack(frame=Frame(dim=8, heads=2, length=LENGTH), order="sf")
    trunk = Encoder(embedding=Embedding(vocab=COLOURS, positions="learned"), stack=stack)
    built = PixelLM().build(trunk).build()
    scores = built.scores

    def raised(hidden):
        found = scores(hidden)
        return torch.cat((found[..., :-1], found[..., -1:] + bias), -1)

    built.scores = raised
    return built


def test_the_start_is_never_drawn_where_a_plain_engine_draws_nothing_else():
    twin = model(bias=1e4)
    given = [torch.empty(0, dtype=torch.int64), torch.tensor([1, 2, 3])]
    for sampling in (Sampling(temperature=1.0, seed=0), Sampling(), Sampling(temperature=100.0)):
        for row in sample_pictures(twin, given, LENGTH, sampling=sampling):
            assert len(row) == LENGTH
            assert 0 <= int(row.min()) <= int(row.max()) < COLOURS
    plain = Engine(model=twin, prompts=[torch.tensor([COLOURS])], stopping=Stopping(new_tokens=1))
    assert [step.token for step in plain.steps()] == [COLOURS]


def test_beginnings_stay_and_pixels_follow_the_model():
    own = model()
    given = [torch.tensor([4, 0]), torch.arange(LENGTH) % COLOURS, torch.tensor([3, 3])]
    found = sample_pictures(own, given, LENGTH, sampling=Sampling())
    assert found[1].tolist() == given[1].tolist()  # whole already
    for row, first in zip(found, given, strict=True):
        assert row[: len(first)].tolist() == first.tolist()
        ids = torch.cat((torch.tensor([COLOURS]), row[:-1]))
        best = own(ids[None])[0, :, :COLOURS].argmax(-1)  # (n,) after each
        assert row[len(first) :].tolist() == best[len(first) :].tolist()


def test_a_seed_gives_the_same_pictures_again_and_rows_differ():
    given = [torch.empty(0, dtype=torch.int64)] * 3
    draw = lambda seed: sample_pictures(  # noqa: E731
        model(), given, LENGTH, sampling=Sampling(temperature=1.0, seed=seed)
    )
    first, again, other = draw(1), draw(1), draw(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1])
    assert any(not torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_after_the_seconds_pictures_are_as_long_as_they_have_come():
    found = sample_pictures(model(), [torch.tensor([1])], LENGTH, seconds=0.0)
    assert 1 < len(found[0]) < LENGTH


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (torch.zeros(LENGTH + 1, dtype=torch.int64), "0 to 12 ids"),
        (torch.tensor([COLOURS]), "0 to 4"),
        (torch.tensor([0.5]), "float32"),
    ],
)
def test_what_is_no_beginning(given, word):
    with pytest.raises(WeftError, match=word):
        sample_pictures(model(), [given], LENGTH)
