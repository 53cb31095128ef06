"""Kernels that gather inside themselves, on a GPU in bfloat16 against the plain forms in fp64.

python tests/gpu/test_lsh_gpu.py        works without pytest's collection, too
"""

import pytest
import torch
from gpu_checks import attempt, error

from weft.kernels.lsh.buckets import centroid_cosines, hash_tokens
from weft.kernels.lsh.reformer import attend_layout, chunks_of_buckets, chunks_of_order
from weft.kernels.lsh.routing import attend_clusters, nearest_tokens
from weft.kernels.lsh.routing_triton import attend_members, members_of
from weft.kernels.lsh.triton import attend_runs, runs_of_buckets, runs_of_order
from weft.mixers import Frame, Reformer, Routing

pytestmark = pytest.mark.gpu
N, HEADS, COUNT = 1500, 4, 12
CASES = [
    ("buckets", 64, 4),
    ("order", 64, 4),
    ("clusters", 64, 4),
    ("order", 128, 2),
    ("buckets", 32, 1),
    ("clusters", 16, 2),
    ("buckets", 128, 1),
    ("order", 8, 4),
    ("buckets", 48, 2),
    ("clusters", 24, 1),
]


def heads(d, kv_heads):
    torch.manual_seed(0)
    shapes = ((HEADS, d), (kv_heads, d))
    made = [torch.randn(2, N, *shape, device="cuda", dtype=torch.bfloat16) for shape in shapes]
    return [x.transpose(1, 2).requires_grad_() for x in made]


def wide(x, v):
    """q, k and v in fp64, gradients going on to x and v."""
    q = x.double()
    k = q / (q.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    return q, k, v.double().repeat_interleave(HEADS // v.shape[1], 1)


def attend_both(kind, x, v):
    """By the kernels, and plainly in fp64, from the same buckets or clusters."""
    scale = 2.0
    length = torch.tensor([N, N // 3], device="cuda")
    buckets = torch.randint(0, COUNT, (2, HEADS, 3, N), device="cuda")
    if kind == "buckets":
        ours = runs_of_buckets(buckets, COUNT, chunk=48, lookback=1)
        plain = chunks_of_buckets(buckets, COUNT, size=48, lookback=1)
        real = torch.ones(2, N, dtype=torch.bool, device="cuda")
    elif kind == "order":
        near = {"lookback": 1, "lookahead": int(x.shape[3] != 64)}
        ours = runs_of_order(buckets, COUNT, length, chunk=64, **near)
        plain = chunks_of_order(
            buckets, COUNT, length, size=64, **near, causal=False, across_rounds=False
        )
        real = torch.arange(N, device="cuda") < length[:, None]
    if kind != "clusters":
        expected = attend_layout(*wide(x, v), plain, scale=scale)
        return attend_runs(x, v, ours, scale=scale, eps=1e-6), expected * real[:, None, :, None]
    centroids = torch.randn(HEADS, COUNT, x.shape[3], device="cuda")
    _, near = centroid_cosines(x.detach(), centroids, length)
    size = torch.full_like(length, 192)
    tokens, counts = nearest_tokens(near.transpose(-1, -2), length, size, 192)
    expected = attend_clusters(*wide(x, v), tokens, counts, scale=scale, dropout=0.0)
    return attend_members(x, v, members_of(near, length, size, 192), scale=scale), expected


@pytest.mark.parametrize(("kind", "d", "kv_heads"), CASES)
def test_attention_equals_the_plain_form(kind, d, kv_heads):
    x, v = heads(d, kv_heads)
    out, expected = attend_both(kind, x, v)
    upstream = torch.randn_like(out)
    found = torch.autograd.grad(out, (x, v), upstream)
    wanted = torch.autograd.grad(expected, (x, v), upstream.double())
    errors = [error(out, expected), *map(error, found, (y.double() for y in wanted))]
    assert max(errors) < 1e-2, errors


@pytest.mark.parametrize("d", [64, 8])
@pytest.mark.parametrize("buckets", [[64], [16, 32]], ids=["one hash", "two"])
def test_hashes_are_those_of_fp64(buckets, d):
    x = heads(d, 1)[0].detach()
    columns = [count // 2 for count in buckets]
    rotations = torch.randn(HEADS, 3, d, sum(columns), device="cuda")
    found, wanted, size = hash_tokens(x, rotations, buckets), 0, 1
    turned = x[:, :, None].double() @ rotations.double()
    for count, part in zip(buckets, turned.split(columns, -1), strict=True):
        wanted = wanted + torch.cat((part, -part), -1).argmax(-1) * size
        size *= count
    # Rounding may move a token on the border of two buckets.
    assert (found == wanted).double().mean() > 0.9998


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("config", [Reformer(), Routing(clusters=24, window=64)], ids=str)
def test_layers_train_and_decode(config, causal):
    torch.manual_seed(0)
    frame = Frame(dim=256, heads=HEADS, causal=causal, length=N)
    mixer = config.build(frame).to("cuda", torch.bfloat16)
    x = torch.randn(2, N, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    before = [p.clone() for p in mixer.buffers()]
    mixer(x).square().mean().backward()
    grads = {"x": x.grad} | {name: p.grad for name, p in mixer.named_parameters()}
    bad = [name for name, grad in grads.items() if not (grad.isfinite().all() and grad.any())]
    assert not bad, bad
    moved = any(not torch.equal(a, b) for a, b in zip(before, mixer.buffers(), strict=True))
    assert moved == isinstance(config, Routing), moved
    if causal:
        compare_decoding(mixer.eval(), x)


@torch.no_grad()
def compare_decoding(mixer, x):
    """Steps against forward, which is given the buckets that the steps found.

    A projection of some tokens may round otherwise than that of all: a part of a batch is not
    contiguous, so torch adds its bias in a second step. Tokens on the border of two buckets then
    move, and whoever stands behind them in either bucket reads other keys.
    """
    state, outputs = mixer.start(2), []
    for piece in x.split([N - 130, 1, 127, 2], 1):
        y, state = mixer.step(piece, state)
        outputs.append(y)
    number, kept = ("hash", "buckets") if hasattr(mixer, "hash") else ("route", "clusters")
    decided = getattr(state, kept)
    moved = (getattr(mixer, number)(mixer.project(x)[0]) != decided).double().mean().item()
    assert moved < 0.01, f"{moved:.2%} of the bucket numbers moved"
    setattr(mixer, number, lambda shared: decided)
    whole = mixer(x)
    off = (torch.cat(outputs, 1) - whole).float().norm(dim=-1) / whole.float().norm(dim=-1)
    parts = [part.max().item() for part in off.split([N - 130, 1, 127, 2], 1)]
    assert max(parts) < 0.03, f"off by {parts}; {moved:.2%} of the bucket numbers moved"


def test_dropout_keeps_its_mean():
    x, _ = heads(64, 4)
    buckets = torch.randint(0, COUNT, (2, HEADS, 3, N), device="cuda")
    runs = runs_of_buckets(buckets, COUNT, chunk=48, lookback=1)
    ones = torch.ones_like(x)
    one, other = (attend_runs(x, ones, runs, scale=1.0, dropout=0.3).float() for _ in range(2))
    assert abs(one.mean().item() - 1) < 0.02
    assert 0.01 < one.std().item() < 1.0
    assert not torch.equal(one, other)


if __name__ == "__main__":
    calls = [(test_attention_equals_the_plain_form, case) for case in CASES[:3]]
    calls += [(test_hashes_are_those_of_fp64, (b, d)) for b in ([64], [16, 32]) for d in (64, 8)]
    layers = [Reformer(), Routing(clusters=24, window=64)]
    calls += [(test_layers_train_and_decode, (c, way)) for c in layers for way in (True, False)]
    calls += [(test_dropout_keeps_its_mean, ())]
    calls += [(test_attention_equals_the_plain_form, case) for case in CASES[3:]]
    for check, args in calls:
        print(attempt(check, args), flush=True)
