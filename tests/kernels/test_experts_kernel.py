"""Slots of experts against a loop over pairs, and ragged products against a loop over rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.kernels.experts.dispatch import assign, combine, spread
from weft.kernels.experts.products import ragged_matmul


def numbers(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.manual_seed(seed))


@settings(deadline=None, max_examples=60)
@given(
    wanted=st.lists(st.integers(0, 4), min_size=1, max_size=24),
    choices=st.integers(1, 2),
    capacity=st.one_of(st.none(), st.integers(1, 5)),
)
def test_pairs_and_slots_against_a_loop(wanted, choices, capacity):
    """Buckets 0 to 3; 4 asks for none."""
    tokens = len(wanted)
    bucket = torch.tensor(wanted * choices).view(choices, tokens)
    places = assign(bucket.flatten(), 4, capacity)
    x, gate = numbers(tokens, 3).requires_grad_(), numbers(tokens, choices, seed=1).requires_grad_()
    factor = numbers(4, 3, seed=2)
    room = {b: capacity if capacity is not None else 1000 for b in range(4)}
    expected = torch.zeros(tokens, 3, dtype=torch.float64)
    for k in range(choices):
        for t in range(tokens):
            b = int(bucket[k, t])
            if b < 4 and room[b]:
                room[b] -= 1
                row = torch.zeros_like(expected)
                row[t] = 1.0
                expected = expected + row * gate[t, k] * x[t] * factor[b]
    slots = spread(x, places)
    if capacity is None:
        owner = torch.searchsorted(places.ends.long(), torch.arange(len(slots)), right=True)
        z = slots * factor[owner.clamp(max=3)]
        z = z.masked_fill((owner > 3)[:, None], float("nan"))  # don't-care rows
    else:
        z = (slots.unflatten(0, (4, capacity)) * factor[:, None]).flatten(0, 1)
    y = combine(z, gate, places)
    torch.testing.assert_close(y, expected)
    ours = torch.autograd.grad(y.sin().sum(), [x, gate], allow_unused=True)
    if expected.requires_grad:
        theirs = torch.autograd.grad(expected.sin().sum(), [x, gate])
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b)


def test_an_empty_slot_gets_no_gradient():
    places = assign(torch.tensor([2, 2, 0]), 3, 4)
    z = numbers(12, 2).requires_grad_()
    combine(z, torch.ones(3, 1, dtype=torch.float64), places).sum().backward()
    held = z.grad.any(-1).nonzero().flatten().tolist()
    assert held == [0, 8, 9]  # expert 0: one token; expert 2: two


def test_second_derivatives():
    places = assign(torch.tensor([1, 0, 1, 1]), 2, 2)
    x = numbers(2, 3).requires_grad_()
    gate = numbers(2, 2, seed=1).requires_grad_()

    def through(x, gate):
        return combine(spread(x, places).pow(3), gate, places)

    assert torch.autograd.gradcheck(through, (x, gate))
    assert torch.autograd.gradgradcheck(through, (x, gate))


@settings(deadline=None, max_examples=30)
@given(sizes=st.lists(st.integers(0, 4), min_size=1, max_size=5), beyond=st.integers(0, 3))
def test_ragged_products_against_a_loop(sizes, beyond):
    ends = torch.tensor(sizes).cumsum(0).int()
    rows = sum(sizes)
    x = numbers(rows + beyond, 3).requires_grad_()
    weight = numbers(len(sizes), 3, 5, seed=1).requires_grad_()
    y = ragged_matmul(x, weight, ends)[:rows]
    owner = [e for e, size in enumerate(sizes) for _ in range(size)]
    if not owner:
        return
    expected = torch.stack([x[i] @ weight[e] for i, e in enumerate(owner)])
    torch.testing.assert_close(y, expected)
    wanted = torch.randn_like(y)
    for ours, theirs in zip(
        torch.autograd.grad(y, [x, weight], wanted),
        torch.autograd.grad(expected, [x, weight], wanted),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_the_operator_is_registered_well():
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    args = (numbers(6, 3).requires_grad_(), numbers(3, 3, 4).requires_grad_(), ends)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.weft.ragged_matmul.default, args, test_utils=tests)
    torch.library.opcheck(
        torch.ops.weft.ragged_outer.default,
        (numbers(6, 3), numbers(6, 4), ends),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_operations_are_counted():
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        ragged_matmul(numbers(6, 3), numbers(2, 3, 4), torch.tensor([2, 6], dtype=torch.int32))
    assert counter.get_total_flops() == 2 * 6 * 3 * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_numbers(dtype):
    ends = torch.tensor([3, 7], dtype=torch.int32)
    x, weight = numbers(7, 16).to(dtype), numbers(2, 16, 8, seed=1).to(dtype)
    y = ragged_matmul(x, weight, ends)
    expected = torch.cat((x[:3].double() @ weight[0].double(), x[3:].double() @ weight[1].double()))
    assert y.dtype == dtype
    assert (y.double() - expected).abs().max() < 16 * torch.finfo(dtype).eps * expected.abs().max()
