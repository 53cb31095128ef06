"""Linear attention both ways: gradients against autograd's own, and what is kept for them."""

import pytest
import torch

from weft.kernels.linear_attention.bidirectional import elu_plus_one, read_both_ways
from weft.kernels.linear_attention.reference import linear_attention


def plain(q, k, v, eps, floor):
    """The equation, with a derivative for each step."""
    values, bottom = k.mT @ v, q @ k.sum(-2)[..., None]
    return q @ values / (bottom + eps if floor is None else bottom.clamp(min=floor))


def features(r=7, m=9, f=5, e=3):
    torch.manual_seed(0)
    made = torch.rand(2, 3, r, f), torch.rand(2, 3, m, f), torch.randn(2, 3, m, e)
    return [x.double().requires_grad_() for x in made]


@pytest.mark.parametrize("floor", [None, 0.1, 12.0, 100.0], ids=str)
def test_values_and_gradients_are_those_of_the_equation(floor):
    """A floor below all denominators, among them and above."""
    inputs = features()
    if floor == 12.0:
        bottom = inputs[0] @ inputs[1].sum(-2)[..., None]
        assert (bottom < floor).any()
        assert (bottom > floor).any()
    ours, theirs = (f(*inputs, 0.3, floor) for f in (read_both_ways, plain))
    torch.testing.assert_close(ours, theirs)
    upstream = torch.randn_like(ours)
    found, wanted = (torch.autograd.grad(y, inputs, upstream) for y in (ours, theirs))
    torch.testing.assert_close(found, wanted)


def test_the_feature_and_its_derivative():
    x = torch.tensor([-60.0, -3.0, -1e-9, 0.0, 1e-9, 2.0, 50.0]).double().requires_grad_()
    y = elu_plus_one(x)
    torch.testing.assert_close(y, torch.where(x > 0, x + 1, x.exp()))
    (slope,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(slope, torch.where(x > 0, torch.ones_like(x), x.exp()))
    assert y[0] > 0, "nothing is cancelled"


def kept(call, inputs) -> int:
    """Numbers saved for the backward pass, each memory once, those of the inputs left out."""
    seen = {}

    def pack(tensor):
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        call(*inputs)
    own = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    return sum(size for place, size in seen.items() if place not in own)


def test_little_is_kept():
    """Features of q and k and the result; dense rows beside them would show."""
    n, d = 512, 16
    q, k, v = (torch.randn(2, 4, n, d, requires_grad=True) for _ in range(3))
    rows = 4 * 2 * 4 * n * d  # bytes of a tensor like q
    found = kept(lambda *qkv: linear_attention(*qkv, feature="elu"), (q, k, v))
    assert found < 3.3 * rows, f"{found / rows:.2f} tensors like q are kept"

    def steps(q, k, v):
        q, k = (x.clamp(max=0).exp() + x.relu() for x in (q, k))
        return plain(q, k, v, 1e-6, None)

    assert kept(steps, (q, k, v)) > 6 * rows, "the check would notice"
