"""Chunks: the same values and gradients, less memory in training."""

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from weft.errors import WeftError
from weft.feedforward import FEEDFORWARDS, Chunked, Dense, Switch


def pair(tokens, dim=8, **settings):
    """A plain feed-forward and its chunked twin with the same weights."""
    inner = Dense(activation="swiglu", **settings)
    torch.manual_seed(0)
    plain = inner.build(dim).double()
    chunked = Chunked(inner=inner, tokens=tokens).build(dim).double()
    chunked.inner.load_state_dict(plain.state_dict())
    return plain, chunked


@pytest.mark.parametrize("n", [1, 3, 4, 7, 8])
@pytest.mark.parametrize("tokens", [1, 4, 5, 100])
def test_is_the_same_function(tokens, n):
    plain, chunked = pair(tokens)
    x = torch.randn(2, n, 8, dtype=torch.float64, requires_grad=True)
    valid = torch.ones(2, n, dtype=torch.bool)
    for module in (plain, chunked):
        assert torch.equal(module(x, valid=valid), module(x))
    torch.testing.assert_close(chunked(x), plain(x), rtol=0, atol=1e-13)
    with torch.no_grad():
        torch.testing.assert_close(chunked(x), plain(x), rtol=0, atol=1e-13)
    wanted = torch.randn_like(x)
    found = [
        torch.autograd.grad(module(x), [x, *module.parameters()], wanted)
        for module in (plain, chunked)
    ]
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_equals_transformers_chunking():
    utils = pytest.importorskip(
        "transformers.pytorch_utils", reason="parity with its implementation"
    )
    plain, chunked = pair(4)
    x = torch.randn(1, 8, 8, dtype=torch.float64)
    theirs = utils.apply_chunking_to_forward(lambda part: plain(part), 4, 1, x)
    torch.testing.assert_close(chunked(x), theirs)


class Peak(TorchDispatchMode):
    """The most bytes that storages made inside the `with` held at one time."""

    def __init__(self):
        super().__init__()
        self.now = self.most = 0
        self.known = weakref.WeakKeyDictionary()

    def freed(self, size):
        self.now -= size

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage not in self.known:
                    self.known[storage] = True
                    self.now += storage.nbytes()
                    self.most = max(self.most, self.now)
                    weakref.finalize(storage, self.freed, storage.nbytes())
        return made


def peak(module, x):
    with Peak() as bytes_held:
        module(x).square().sum().backward()
    return bytes_held.most


def test_training_takes_less_memory():
    plain, chunked = pair(64, dim=16, expansion=16)
    x = torch.randn(4, 256, 16, dtype=torch.float64, requires_grad=True)
    whole, parts, one = (peak(m, x) for m in (plain, chunked, pair(4096, 16, expansion=16)[1]))
    assert parts < 0.35 * whole
    assert one > 0.9 * whole  # one chunk saves nothing: the measure sees hidden units


def test_dropout_is_the_same_in_the_second_run():
    torch.manual_seed(0)
    chunked = Chunked(tokens=3).build(8, dropout=0.5).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)

    def run():
        torch.manual_seed(3)
        return chunked(x).sum()

    (found,) = torch.autograd.grad(run(), x)
    ahead = torch.zeros_like(x)
    step = 1e-6
    with torch.no_grad():
        ahead[0, 1, 2] = step
        base = run()
        x += ahead
        moved = run()
        x -= ahead
    assert found[0, 1, 2].item() == pytest.approx(((moved - base) / step).item(), abs=1e-5)


def test_spec_strings_nest():
    config = FEEDFORWARDS.parse("chunked(inner=dense(activation='glu'), tokens=7)")
    assert config == Chunked(inner=Dense(activation="glu"), tokens=7)
    assert Chunked(inner="dense(hidden=3)").inner == Dense(hidden=3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokens": 0}, "at least 1 token; got tokens=0"),
        ({"inner": 5}, "chunked.inner is a feed-forward: .* got 5"),
        ({"inner": Switch()}, "tokens of switch share something"),
        ({"inner": "product_key"}, "tokens of product_key share something"),
    ],
)
def test_refuses(settings, message):
    with pytest.raises(WeftError, match=message):
        Chunked(**settings)
