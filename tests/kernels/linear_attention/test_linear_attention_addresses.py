"""No kernel of linear attention touches memory outside its tensors.

The interpreter of Triton reads and writes any address. Here each is compared with the ranges of the
tensors that the kernel was given.
"""

import numpy as np
import pytest
import torch

import weft.kernels.linear_attention.triton as fused
from weft.kernels.linear_attention.triton import Random

CASES = {  # kind, features, width, width of values, tokens, heads, key heads, gated, padded
    "short": ("exp", 5, 16, 16, 1, 1, 1, False, False),
    "wide exp": ("exp", 19, 128, 128, 37, 1, 1, False, False),
    "two tiles": ("exp", 37, 16, 16, 17, 2, 1, True, True),
    "trig": ("trig", 9, 32, 16, 33, 2, 2, True, False),
    "relu": ("relu", 16, 16, 32, 32, 2, 1, False, True),
    "given": ("given", 48, 48, 16, 35, 2, 1, True, True),
    "elu": ("elu", 21, 21, 16, 31, 2, 2, False, False),
}


class Checked:
    """The interpreter's memory, with a guard at its door."""

    def __init__(self, memory):
        self.memory, self.ranges, self.seen = memory, [], 0

    def __getattr__(self, name):
        return getattr(self.memory, name)

    def watch(self, tensors):
        self.ranges = []
        for x in tensors:
            last = sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
            begin = x.data_ptr()
            self.ranges.append((begin, begin + (last + 1) * x.element_size()))

    def check(self, addresses, mask, size):
        used = addresses[np.broadcast_to(mask, addresses.shape).astype(bool)].astype(np.int64)
        inside = np.zeros(used.shape, dtype=bool)
        for begin, end in self.ranges:
            inside |= (used >= begin) & (used + size <= end)
        assert inside.all(), f"{(~inside).sum()} of {used.size} addresses lie outside"
        self.seen += used.size

    def load(self, addresses, mask, other, dtype):
        self.check(addresses, mask, np.dtype(dtype).itemsize)
        return self.memory.load(addresses, mask, other, dtype)

    def store(self, addresses, value, mask):
        self.check(addresses, mask, value.dtype.itemsize)
        return self.memory.store(addresses, value, mask)


@pytest.fixture
def memory(monkeypatch):
    interpreter = pytest.importorskip(
        "triton.runtime.interpreter", reason="its loads and stores are watched"
    )
    checked = Checked(interpreter._interpreter)
    prepare = interpreter.GridExecutor._init_args_hst

    def prepared(self, args, kwargs):
        found = prepare(self, args, kwargs)
        checked.watch(x for x in (*found[0], *found[1].values()) if torch.is_tensor(x))
        return found

    monkeypatch.setattr(interpreter, "_interpreter", checked)
    monkeypatch.setattr(interpreter.GridExecutor, "_init_args_hst", prepared)
    for name in ("GIVEN", "RANDOM", "WIDE"):
        cut = {"chunk": 16, "tile": 16, "programs": 6}
        monkeypatch.setattr(fused, name, getattr(fused, name)._replace(**cut))
    return checked


def run(case):
    """Values and gradients, from slices in the middle of larger tensors."""
    kind, f, d, e, n, heads, key_heads, gated, padded = CASES[case]
    shapes = ((heads, d), (key_heads, d), (key_heads, e))
    given = [torch.rand(2, n + 2, h, w)[:, 1:-1].transpose(1, 2) for h, w in shapes]
    feature = kind
    if kind not in ("given", "elu"):
        unit = torch.rand(key_heads, d) if kind == "trig" else None
        feature = Random(kind, torch.randn(key_heads, f, d), 0.3, unit)
    gates = {}
    if gated:
        size = (2, key_heads, n)
        gates = {"weight": torch.rand(size), "log_decay": -torch.rand(size)}
        given.extend(gates.values())
    given = [x.requires_grad_() for x in given]
    if padded:
        gates["valid"] = torch.arange(n) < torch.tensor([[n], [n // 2]])
    out = fused.fused_causal_attention(*given[:3], feature=feature, floor=0.1, **gates)
    torch.autograd.grad(out.sum(), given)


@pytest.mark.parametrize("case", CASES)
def test_every_address_lies_in_a_tensor(memory, case):
    run(case)
    assert memory.seen > 1000


@pytest.mark.parametrize("broken", ["rows", "features"])
def test_the_check_bites(monkeypatch, memory, broken):
    """One row more than there is, or directions that end early."""
    made = fused._FeatureMapRun.__init__

    def wrong(self, *args):
        made(self, *args)
        if broken == "rows":
            self.n += 1
        else:
            self.directions = self.directions[:, :-16].contiguous()

    monkeypatch.setattr(fused._FeatureMapRun, "__init__", wrong)
    with pytest.raises(Exception, match="lie outside"):
        run("two tiles")
