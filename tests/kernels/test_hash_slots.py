"""Sorted slots and block-sparse kernels give what chunks of plain products give."""

import dataclasses

import pytest
import torch

from weft.kernels import hash_slots
from weft.mixers import Frame, Reformer


def both(causal, n, config, monkeypatch=None, twin=None):
    """Outputs and gradients of q, k, v: by chunks, and by slots."""
    torch.manual_seed(n)
    frame = Frame(dim=32, heads=2, causal=causal, length=n)
    mixer = config.build(frame).double()
    heads = mixer.heads(torch.randn(2, n, 32, dtype=torch.float64))
    buckets, length = heads[3], torch.full((2,), n)
    upstream = torch.randn(2, 2, n, 16, dtype=torch.float64)
    found = []
    for way in ("chunks", "slots"):
        q, k, v = (x.detach().requires_grad_() for x in heads[:3])
        if way == "chunks":
            y = mixer.attention(q, k, v, buckets, length)
        else:
            if twin:
                twin(monkeypatch)
            y = mixer.slot_attention(q, k, v, buckets, 0.0, kernel="gather")
        found.append((y, *torch.autograd.grad(y, (q, k, v), upstream)))
    return found


CONFIGS = (
    Reformer(chunk=8, rounds=3, buckets=4),
    Reformer(chunk=16, rounds=2, buckets=8, lookback=2),
    Reformer(chunk=8, rounds=1, buckets=2, lookback=0),
)


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("n", [64, 101])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_slots_equal_chunks(causal, n, config):
    for one, other in zip(*both(causal, n, config), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-10)


def without_labels(monkeypatch):
    def unlabelled(buckets, count, size):
        made = slots_of_buckets(buckets, count, size)
        return dataclasses.replace(made, label=torch.zeros_like(made.label))

    slots_of_buckets = hash_slots.slots_of_buckets
    monkeypatch.setattr("weft.mixers.reformer.slots_of_buckets", unlabelled)


def scattered_twice(monkeypatch):
    """Gradients of free slots reach tokens."""
    monkeypatch.setattr(torch.Tensor, "masked_fill_", lambda x, *_: x)


@pytest.mark.parametrize("twin", [without_labels, scattered_twice], ids=["labels", "free slots"])
def test_broken_twins_are_noticed(twin, monkeypatch):
    one, other = both(True, 101, CONFIGS[0], monkeypatch, twin)
    same = [torch.allclose(a, b, rtol=1e-6, atol=1e-8) for a, b in zip(one, other, strict=True)]
    assert not all(same)
