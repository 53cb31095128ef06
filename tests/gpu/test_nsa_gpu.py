"""The kernels of native sparse attention on a GPU, against fp64.

python tests/gpu/test_nsa_gpu.py        works without pytest's collection, too
"""

import copy
from itertools import product

import pytest
import torch
from gpu_checks import attempt, compare, error
from torch.nn.functional import linear

from weft.kernels.nsa import gates as nsa_gates
from weft.kernels.nsa.heads import can_join, joint_heads
from weft.kernels.nsa.importance import can_choose, choose_blocks
from weft.kernels.nsa.reference import attend_selected
from weft.kernels.nsa.slots import attend_slots
from weft.kernels.nsa.triton import can_fuse
from weft.mixers import NSA, Frame

pytestmark = pytest.mark.gpu
HEADS = {"alone": (4, 4), "by three": (6, 2), "shared": (16, 1)}


def heads(n, count, d=64, b=2, dtype=torch.bfloat16):
    made = torch.randn(b, n, count, d, device="cuda", dtype=dtype)
    return made.transpose(1, 2).requires_grad_()


def dense(q, k, v, seen):
    """softmax(q·kᵀ / √d) v under a mask, in fp64; no key: 0."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scores = (q.double() @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen, -1e30)
    return (scores.softmax(-1) * seen) @ v, scores


def ended(n, slots, span=32, stride=16):
    last = torch.arange(slots, device="cuda") * stride + span - 1
    return last <= torch.arange(n, device="cuda")[:, None]  # (n, slots)


@pytest.mark.parametrize("d", [32, 64, 128])
@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("block", [32, 64])
def test_selected_blocks_equal_dense(name, d, block):
    torch.manual_seed(0)
    (h, g), n, m = HEADS[name], 1808, 2032
    q, k, v = given = [heads(n, h, d), heads(m, g, d), heads(m, g, d)]
    count, j = -(-m // block), torch.arange(m, device="cuda")
    i = torch.arange(m - n, m, device="cuda")[:, None]
    weight = torch.rand(2, g, n, count, device="cuda")
    blocks = torch.arange(count, device="cuda")
    weight = weight.masked_fill(blocks > i // block, -1.0).masked_fill(blocks == i // block, 2.0)
    best, chosen = weight.topk(16, dim=-1)
    chosen = chosen.masked_fill(best < 0, count)
    assert can_fuse(q, k, v, block)
    out = attend_selected(q, k, v, chosen, block=block, start=m - n)
    held = torch.zeros(2, g, n, count + 1, dtype=torch.bool, device="cuda")
    held = held.scatter(-1, chosen, True)[..., j // block]
    seen = (held & (j <= i)).repeat_interleave(h // g, 1)
    compare(out, dense(q, k, v, seen)[0], given)


@pytest.mark.parametrize("n", [100, 4096])
@pytest.mark.parametrize("name", HEADS)
def test_slots_and_choice_equal_the_equation(name, n):
    """Where blocks weigh almost the same either may be chosen: their weights are compared."""
    torch.manual_seed(0)
    (h, g), slots, count = HEADS[name], (n - 32) // 16 + 1, -(-n // 64)
    q, k, v = given = [heads(n, h), heads(slots, g), heads(slots, g)]
    assert can_choose(q, k, count)
    out, lse = attend_slots(q, k, v, span=32, stride=16)
    seen = ended(n, slots)
    expected, scores = dense(q, k, v, seen)
    settings = {"block": 64, "each": 4, "shares": 2, "selected": 16, "near": 2}
    chosen = choose_blocks(q, k, lse, **settings).long()
    p = (scores.detach().softmax(-1) * seen).unflatten(1, (g, -1)).sum(2)  # (b, g, n, slots)
    first = torch.arange(slots, device="cuda")[:, None] * 16
    edge = torch.arange(count, device="cuda") * 64
    shared = torch.minimum(first + 32, edge + 64) - torch.maximum(first, edge)
    weight = p @ shared.clamp(min=0).double() / 16
    own = torch.arange(n, device="cuda")[:, None] // 64
    blocks = torch.arange(count, device="cuda")
    always = (blocks == 0) | ((blocks <= own) & (blocks > own - 2))
    weight = weight.masked_fill(always, 1e3).masked_fill(blocks > own, -1.0)
    best = weight.topk(min(16, count)).values.clamp(min=0).sum(-1)
    found = torch.nn.functional.pad(weight, (0, 1)).gather(-1, chosen).clamp(min=0).sum(-1)
    again = chosen.sort(-1).values
    assert not ((again[..., 1:] == again[..., :-1]) & (again[..., 1:] < count)).any(), "twice"
    gap = ((best - found) / (best % 1e3).clamp(min=1e-6)).abs().max().item()
    assert gap < 1e-3, gap
    compare(out, expected, given)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gated_branches_are_their_sum(dtype):
    torch.manual_seed(0)
    logits = torch.randn(2, 777, 15, device="cuda", dtype=dtype, requires_grad=True)
    branches = [heads(777, 5, dtype=dtype) for _ in range(3)]
    assert nsa_gates.can_fuse(tuple(branches))
    out = nsa_gates.gated_sum(logits, tuple(branches))
    share = logits.double().sigmoid().view(2, 777, 3, 5)
    expected = sum(share[:, :, a, :, None] * branches[a].transpose(1, 2) for a in range(3))
    compare(out, expected.flatten(2), [logits, *branches])


@pytest.mark.parametrize("name", HEADS)
def test_heads_are_products_side_by_side(name):
    torch.manual_seed(0)
    (h, g), n, c = HEADS[name], 1111, 256
    sizes = ((2, n, c), (64 * h, c), (6 * 64 * g, c), (64 * h,), (6 * 64 * g,))
    given = [torch.randn(size, device="cuda", dtype=torch.bfloat16) for size in sizes]
    x, *weights = given = [y.requires_grad_() for y in given]
    assert can_join(x, 64)
    found = joint_heads(x, tuple(weights[:2]), tuple(weights[2:]), h, g)
    wide, q_weight, kv_weight, q_bias, kv_bias = (y.double() for y in given)
    q, kv = linear(wide, q_weight, q_bias), linear(wide, kv_weight, kv_bias)
    out = torch.cat([y.transpose(1, 2).flatten(2) for y in found], -1)
    compare(out, torch.cat((q, q, kv), -1), given)


def build(h, g, **settings):
    torch.manual_seed(0)
    frame = Frame(dim=64 * h, heads=h, kv_heads=g, causal=True)
    return NSA(**settings).build(frame).to("cuda", torch.bfloat16)


@pytest.mark.parametrize("name", HEADS)
def test_a_layer_equals_itself_in_fp64(name):
    """All blocks are selected, so that rounding changes no choice."""
    mixer = build(*HEADS[name])
    exact = copy.deepcopy(mixer).double()
    x = torch.randn(2, 1008, mixer.frame.dim, device="cuda", dtype=torch.bfloat16)
    x.requires_grad_()
    other = x.detach().double().requires_grad_()
    upstream = torch.randn_like(x)
    assert can_join(x, 64)
    out, expected = mixer(x), exact(other)
    found = torch.autograd.grad(out, [x, *mixer.parameters()], upstream)
    wanted = torch.autograd.grad(expected, [other, *exact.parameters()], upstream.double())
    names = ["x", *(name for name, _ in mixer.named_parameters())]
    errors = dict(zip(names, map(error, found, wanted), strict=True))
    assert all(grad.isfinite().all() for grad in found)
    assert error(out, expected) < 1e-2
    # What remains moves all keys alike, so that its gradient is little more than rounding.
    told = ("x", "to_q.weight", "to_kv.weight", "to_gates.weight", "to_out.weight")
    told = (*told, "compress_v.first.weight", "compress_k.first.weight")
    assert max(errors[name] for name in told) < 5e-2, errors


def test_steps_equal_forward():
    mixer = build(16, 1).eval()
    x = torch.randn(2, 700, 1024, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        whole, parts, state = mixer(x), [], mixer.start(2)
        for part in x.split((500, 1, 150, 49), dim=1):
            y, state = mixer.step(part, state)
            parts.append(y)
    assert error(torch.cat(parts, 1), whole.double()) < 2e-2


def test_a_long_layer_is_finite_and_repeats():
    mixer = build(12, 12)
    x = torch.randn(1, 16384, 768, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    grads = []
    for _ in range(2):
        out = mixer(x)
        grads.append((out, *torch.autograd.grad(out.float().square().mean(), [x])))
    assert all(y.isfinite().all() for y in grads[0])
    assert torch.equal(grads[0][0], grads[1][0])


if __name__ == "__main__":
    cases = (("alone", 64, 64), ("shared", 64, 64), ("by three", 128, 64))
    calls = [(test_selected_blocks_equal_dense, args) for args in cases]
    cases = product(("alone", "shared"), (100, 4096))
    calls += [(test_slots_and_choice_equal_the_equation, args) for args in cases]
    calls += [(test_a_layer_equals_itself_in_fp64, (name,)) for name in ("alone", "shared")]
    calls += [(test_heads_are_products_side_by_side, (name,)) for name in HEADS]
    calls += [(test_steps_equal_forward, ()), (test_a_long_layer_is_finite_and_repeats, ())]
    kinds = (torch.float16, torch.bfloat16, torch.float32)
    calls += [(test_gated_branches_are_their_sum, (dtype,)) for dtype in kinds]
    for check, args in calls:
        print(attempt(check, args), flush=True)
