"""Axial attention against the axial_attention package, line by line, and two layers' reach."""

import pytest
import torch
from axial_attention import AxialAttention as Theirs

from mixers.fixed_patterns import (
    DIM,
    HEADS,
    D,
    attention,
    build,
    close,
    copy_linears,
    decoded,
    pairs,
    tokens,
)
from weft.errors import WeftError
from weft.mixers import Axial


@pytest.mark.parametrize(("height", "width"), [(4, 6), (1, 5), (7, 1), (5, 5)])
def test_equals_the_axial_attention_package(height, width):
    """Its first module runs along columns, its second along rows; the outputs are added."""
    theirs = Theirs(DIM, num_dimensions=2, heads=HEADS, sum_axial_out=True).double()
    mixer, x = build(Axial(width=width)), tokens(height * width)
    for axis, permuted in zip(mixer.axes, reversed(theirs.axial_attentions), strict=True):
        other = permuted.fn
        key, value = (torch.nn.Linear(DIM, DIM, bias=False) for _ in range(2))
        key.weight, value.weight = map(torch.nn.Parameter, other.to_kv.weight.chunk(2))
        copy_linears(axis.project, other.to_q, key, value, other.to_out)
    expected = theirs(x.unflatten(1, (height, width))).flatten(1, 2)
    torch.testing.assert_close(mixer(x), expected, **close)


def lines(n, width, causal):
    """Who reads whom along rows and along columns."""
    row = pairs(n, lambda i, j: i // width == j // width and (j <= i or not causal))
    column = pairs(n, lambda i, j: i % width == j % width and (j <= i or not causal))
    return row, column


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 6, 23, 36])
def test_the_definition(n, causal):
    """The last row may be short."""
    mixer, x = build(Axial(width=6), causal=causal, kv_heads=2), tokens(n)
    expected = sum(
        attention(axis.project, x, seen)
        for axis, seen in zip(mixer.axes, lines(n, 6, causal), strict=True)
    )
    torch.testing.assert_close(mixer(x), expected, **close)


def test_one_row_is_full_attention_beside_the_values():
    mixer, x = build(Axial(width=30)), tokens(30)
    row, column = mixer.axes
    copied = column.project.to_out(column.project.to_v(x))
    torch.testing.assert_close(mixer(x), attention(row.project, x, None) + copied, **close)


def test_two_layers_connect_any_two_pixels():
    row, column = (seen.long() for seen in lines(30, 6, causal=False))
    one = row + column > 0
    assert not one.all()
    assert (one.long() @ one.long() > 0).all()


def test_decoding_keeps_the_open_row_and_every_column():
    mixer, x = build(Axial(width=6), causal=True, kv_heads=2), tokens(40)
    torch.testing.assert_close(decoded(mixer, x, [1, 5, 1, 13, 20]), mixer(x), **close)
    for t in range(40):
        assert mixer.state_size(t) == 2 * 2 * D * (t + t % 6)


def test_rows_of_a_decoding_batch_can_be_chosen():
    mixer, x = build(Axial(width=4), causal=True), tokens(11, b=3)
    _, state = mixer.step(x[:, :7], mixer.start(3))
    y, _ = mixer.step(x[[2, 0], 7:], state.select(torch.tensor([2, 0])))
    torch.testing.assert_close(y, mixer(x)[[2, 0], 7:], **close)


def test_bad_settings():
    with pytest.raises(WeftError, match="width is a whole number of at least 1; got width=0"):
        Axial(width=0)
