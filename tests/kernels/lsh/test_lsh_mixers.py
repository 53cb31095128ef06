"""Reformer and Routing through the kernels that gather inside themselves, against `reference`."""

from dataclasses import replace

import pytest
import torch

import weft.mixers.reformer
import weft.mixers.routing
from weft.kernels.launch import Program
from weft.kernels.lsh import buckets as lsh_buckets
from weft.kernels.lsh import triton as lsh_triton
from weft.kernels.lsh.buckets import centroid_cosines, hash_tokens
from weft.kernels.lsh.routing_triton import members_of
from weft.mixers import Frame, Reformer, Routing

CASES = {
    "reformer": (Reformer(chunk=4, rounds=2, buckets=4), {}),
    "reformer, two hashes": (Reformer(chunk=5, rounds=1, buckets=160, lookahead=1), {}),
    "reformer, causal": (Reformer(chunk=4, rounds=2, buckets=4), {"causal": True, "kv_heads": 1}),
    "reformer, narrow heads": (Reformer(chunk=4, rounds=2, buckets=4), {"heads": 4}),
    "reformer, odd heads": (Reformer(chunk=5, rounds=1, buckets=4), {"dim": 48, "causal": True}),
    "routing": (Routing(clusters=3, window=6), {"kv_heads": 1}),
    "routing, even shares": (Routing(clusters=4), {}),
    "routing, alone": (Routing(clusters=4, window=1), {}),
    "routing, causal": (Routing(clusters=3, window=6), {"causal": True}),
    "routing, narrow heads": (Routing(clusters=3, window=6), {"heads": 4}),
    "routing, odd heads": (Routing(clusters=4, window=5), {"dim": 48, "causal": True}),
}


def takes(*heads, **settings):
    return heads[0].dtype == torch.float32


@pytest.fixture(autouse=True)
def _always(monkeypatch):
    for module in (weft.mixers.reformer, weft.mixers.routing):
        monkeypatch.setattr(module, "can_fuse", takes)
    for name in ("FORWARD", "BACKWARD"):
        monkeypatch.setattr(
            lsh_triton, name, dict.fromkeys(lsh_triton.WIDTHS, Program(16, 16, 4, 1))
        )
    monkeypatch.setattr(lsh_triton, "ROWS", 16)
    monkeypatch.setattr(lsh_triton, "LONGEST_STEP", 16)
    monkeypatch.setattr(lsh_buckets, "CENTROIDS", 16)


def build(config, **frame):
    """A mixer whose numbers float32 holds exactly, and the same in fp64."""
    torch.manual_seed(1)
    frame = Frame(**{"dim": 32, "heads": 2, "length": 64, **frame})
    mixer, twin = config.build(frame), config.build(frame)
    twin.load_state_dict(mixer.state_dict())
    return mixer.eval(), twin.double().eval()


def gradients(y, *inputs):
    torch.manual_seed(2)
    return torch.autograd.grad(y, inputs, torch.randn_like(y, dtype=torch.float64).to(y.dtype))


PADDED = [name for name in CASES if name != "routing, alone"]


def compare(name, lengths):
    config, frame = CASES[name]
    mixer, twin = build(config, **frame)
    n = lengths[0]
    x = torch.randn(len(lengths), n, mixer.frame.dim, requires_grad=True)
    valid = torch.arange(n) < torch.tensor(lengths)[:, None]
    y = mixer(x, valid=None if min(lengths) == n else valid)[valid]
    wide = x.detach().double().requires_grad_()
    truth = twin.reference(wide, valid)[valid]
    torch.testing.assert_close(y.double(), truth, rtol=1e-4, atol=1e-5)
    found = gradients(y, x, *mixer.parameters())
    wanted = gradients(truth, wide, *twin.parameters())
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_equal_the_reference(name):
    compare(name, (21,))


@pytest.mark.parametrize("name", PADDED)
def test_padding_changes_nothing(name):
    compare(name, (21, 6))


def other_buckets(monkeypatch):
    monkeypatch.setattr(
        weft.mixers.reformer, "hash_tokens", lambda *given: hash_tokens(*given).roll(1, -1)
    )


def other_clusters(monkeypatch):
    def shifted(*given):
        nearest, near = centroid_cosines(*given)
        return nearest, near.roll(1, -1)

    monkeypatch.setattr(weft.mixers.routing, "centroid_cosines", shifted)


def one_cluster_counts(monkeypatch):
    def once(*given):
        made = members_of(*given)
        return replace(made, found=torch.ones_like(made.found))

    monkeypatch.setattr(weft.mixers.routing, "members_of", once)


TWINS = {other_buckets: "reformer", other_clusters: "routing", one_cluster_counts: "routing"}


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.__name__)
def test_broken_twins_are_noticed(twin, monkeypatch):
    twin(monkeypatch)
    with pytest.raises(AssertionError):
        compare(TWINS[twin], (21,))


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("routing")])
def test_training_moves_the_centroids_as_the_plain_form_does(name):
    config, frame = CASES[name]
    mixer, twin = build(config, **frame)
    x = torch.randn(2, 21, mixer.frame.dim)
    valid = torch.arange(21) < torch.tensor([[21], [7]])
    before = mixer.centroids.clone()
    mixer.train()(x, valid=valid)
    twin.train()(x.double(), valid=valid)
    torch.testing.assert_close(mixer.centroids.double(), twin.centroids, rtol=0, atol=1e-6)
    assert not torch.allclose(mixer.centroids, before, atol=1e-5)


def compare_steps(name, small):
    """Steps by the kernels and one by one, against forward by the kernels and in fp64."""
    config, frame = CASES[name]
    mixer, twin = build(config, **frame, bias=False)
    x, outputs, state = torch.randn(2, 40, 32), [], mixer.start(2)
    x[:, ::3] *= small
    for piece in x.split([9, 1, 10, 8, 12], 1):
        y, state = mixer.step(piece, state)
        outputs.append(y)
    steps = torch.cat(outputs, 1)
    torch.testing.assert_close(steps, mixer(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(steps.double(), twin.reference(x.double()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("small", [1.0, 1e-3], ids=["plain", "short queries"])
@pytest.mark.parametrize("name", ["reformer, causal", "routing, causal"])
def test_steps_equal_forward(name, small):
    compare_steps(name, small)


def test_keys_are_not_made_keys_twice(monkeypatch):
    """A short query's key is shorter than 1, and stays so."""
    monkeypatch.setattr(
        weft.mixers.reformer,
        "attend_runs",
        lambda *given, keyed, **more: lsh_triton.attend_runs(*given, **more),
    )
    with pytest.raises(AssertionError):
        compare_steps("reformer, causal", 1e-3)
