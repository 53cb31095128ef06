"""Any padding becomes padding on the right, and back."""

import pytest
import torch

from weft.layers.padding import left_align, restore, take

MASKS = {
    "none": [[1, 1, 1, 1], [1, 1, 1, 1]],
    "right": [[1, 1, 0, 0], [1, 1, 1, 0]],
    "left": [[0, 0, 1, 1], [0, 1, 1, 1]],
    "inside": [[1, 0, 1, 1], [0, 1, 0, 1]],
    "all of a row": [[0, 0, 0, 0], [0, 1, 1, 0]],
    "one token": [[1], [0]],
}
masks = pytest.mark.parametrize("mask", [torch.tensor(m).bool() for m in MASKS.values()], ids=MASKS)


def tokens(mask):
    return torch.randn(*mask.shape, 3, dtype=torch.float64)


@masks
def test_real_tokens_come_first_in_their_order(mask):
    x = tokens(mask)
    aligned, valid, _ = left_align(x, mask)
    for row, (tokens_of_row, real) in enumerate(zip(x, mask, strict=True)):
        wanted = [token for token, is_real in zip(tokens_of_row, real, strict=True) if is_real]
        assert valid[row].tolist() == [True] * len(wanted) + [False] * (len(real) - len(wanted))
        for got, token in zip(aligned[row], wanted, strict=False):
            assert torch.equal(got, token)


@masks
def test_nothing_is_lost_on_the_way(mask):
    x = tokens(mask)
    aligned, _, order = left_align(x, mask)
    for row in range(len(x)):
        assert sorted(order[row].tolist()) == list(range(x.shape[1]))
        assert {tuple(t.tolist()) for t in aligned[row]} == {tuple(t.tolist()) for t in x[row]}


@masks
def test_restore_undoes_it_and_silences_padding(mask):
    x = tokens(mask)
    aligned, _, order = left_align(x, mask)
    back = restore(aligned, order, mask)
    assert torch.equal(back[mask], x[mask])
    assert not back[~mask].any()


@masks
def test_padding_that_is_not_a_number_is_silenced(mask):
    x = tokens(mask).masked_fill(~mask[..., None], float("nan"))
    aligned, _, order = left_align(x, mask)
    assert restore(aligned, order, mask).isfinite().all()


@masks
def test_gradients_reach_real_tokens_only(mask):
    x = tokens(mask).requires_grad_()
    aligned, _, order = left_align(x, mask)
    weight = torch.randn_like(x)
    (restore(aligned, order, mask) * weight).sum().backward()
    assert torch.equal(x.grad, weight * mask[..., None])


def test_take_may_repeat_and_choose():
    x = torch.arange(6.0).view(1, 3, 2)
    picked = take(x, torch.tensor([[2, 0, 0, 1]]))
    assert picked.tolist() == [[[4, 5], [0, 1], [0, 1], [2, 3]]]


def test_a_long_row_keeps_its_order():
    mask = torch.rand(2, 5000) < 0.7
    x = torch.arange(5000.0).expand(2, -1)[..., None]
    aligned, valid, _ = left_align(x, mask)
    for row in range(2):
        kept = aligned[row, valid[row], 0]
        assert torch.equal(kept, mask[row].nonzero()[:, 0].float()), "the sort has to be stable"
