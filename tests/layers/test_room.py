"""Caches that grow in place: what a cat would give, and states that stay whole when they branch."""

import pytest
import torch

from weft.layers.cache import append
from weft.mixers import MIXERS, Frame


def rows(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 3, count, 4, generator=generator)


def test_appending_is_a_cat_and_seldom_moves():
    room, held, expected, moves = None, rows(0), rows(0), 0
    for t, count in enumerate([7, 1, 1, 1, 5, *[1] * 200]):
        new = rows(count, seed=t)
        before = room
        held, room = append(room, held, new)
        moves += room is not before
        expected = torch.cat((expected, new), dim=2)
        assert torch.equal(held, expected)
        assert room.shape[2] <= 1.25 * held.shape[2] + 1 or room is before
    assert moves < 20


def test_gradients_pass_through():
    held, new = rows(3).requires_grad_(), rows(2, seed=1)
    grown, room = append(None, held, new)
    assert room is None
    grown.sum().backward()
    assert torch.equal(held.grad, torch.ones_like(held))


def test_room_made_in_inference_mode_is_left_outside():
    with torch.inference_mode():
        held, room = append(None, rows(3), rows(1))
        assert append(room, held, rows(1))[1] is room or room.shape[2] < 5
    grown, other = append(room, held, rows(1, seed=3))
    assert other is not room
    assert torch.equal(grown[:, :, 4:], rows(1, seed=3))


@pytest.fixture
def decoding():
    torch.manual_seed(0)
    mixer = MIXERS["full"]().build(Frame(dim=12, heads=3, causal=True)).double().eval()
    x = torch.randn(2, 9, 12, dtype=torch.float64)
    with torch.no_grad():
        _, state = mixer.step(x[:, :6], mixer.start(2))
        _, state = mixer.step(x[:, 6:7], state)
        yield mixer, x, state


def test_two_continuations_of_one_state_do_not_meet(decoding):
    mixer, x, state = decoding
    other = x.clone()
    other[:, 7:] = -x[:, 7:]
    _, first = mixer.step(x[:, 7:8], state)
    _, second = mixer.step(other[:, 7:8], state)
    torch.testing.assert_close(mixer.step(x[:, 8:], first)[0], mixer(x)[:, 8:])
    torch.testing.assert_close(mixer.step(other[:, 8:], second)[0], mixer(other)[:, 8:])


def test_a_twin_that_keeps_its_room_lets_them_meet(decoding):
    mixer, x, state = decoding
    room = state.room
    _, first = mixer.step(x[:, 7:8], state)
    state.room = room
    mixer.step(-x[:, 7:8], state)
    assert not torch.allclose(mixer.step(x[:, 8:], first)[0], mixer(x)[:, 8:])


def test_selected_rows_have_memory_of_their_own(decoding):
    mixer, x, state = decoding
    swapped = state.select(torch.tensor([1, 0]))
    _, state = mixer.step(x[:, 7:8], state)
    _, swapped = mixer.step(x[[1, 0], 7:8], swapped)
    y, _ = mixer.step(x[:, 8:], state)
    torch.testing.assert_close(y, mixer(x)[:, 8:])
    torch.testing.assert_close(mixer.step(x[[1, 0], 8:], swapped)[0], y[[1, 0]])
