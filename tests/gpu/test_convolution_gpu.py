"""Weighted neighbours, landmarks and Sinkhorn balancing on a GPU, against fp64.

python tests/gpu/test_convolution_gpu.py        works without pytest's collection, too
"""

from itertools import product
from multiprocessing import get_context

import pytest
import torch
import torch.nn.functional as F
from gpu_checks import attempt, compare, error

from weft.kernels.convolution import triton as taps
from weft.kernels.nystrom import reference as landmarks
from weft.kernels.nystrom import solve as nystrom_solve
from weft.kernels.nystrom import triton as nystrom_triton
from weft.kernels.sinkhorn import triton as sinkhorn
from weft.mixers import DynamicConvolution, Frame, LightConvolution, Nystromformer, Sinkhorn

pytestmark = pytest.mark.gpu
LIMITS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def random(*shape, dtype=torch.float32):
    return torch.randn(*shape, device="cuda", dtype=dtype)


@pytest.mark.parametrize("dtype", list(LIMITS), ids=str)
@pytest.mark.parametrize("varies", [False, True], ids=["shared", "varied"])
@pytest.mark.parametrize(
    ("n", "d", "count", "before"), [(1, 64, 1, 0), (1000, 64, 33, 16), (777, 48, 31, 30)]
)
def test_tap_sums(dtype, varies, n, d, count, before):
    torch.manual_seed(0)
    x = random(2, n, 4, d, dtype=dtype).transpose(1, 2).requires_grad_()
    shape = (2, 4, n, count) if varies else (1, 4, 1, count)
    given = random(*shape, dtype=dtype).requires_grad_()
    wide = F.pad(x.double(), (0, 0, before, count - 1 - before))
    expected = sum(given.double()[..., s, None] * wide[:, :, s : s + n] for s in range(count))
    compare(taps.fused_tap_sum(x, given, before), expected, (x, given), LIMITS[dtype])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("n", "d", "r"), [(1000, 64, 64), (4097, 128, 100), (300, 16, 6)])
@pytest.mark.parametrize("part", [False, True], ids=["all", "some"])
def test_landmarks_are_read_by_softmax(dtype, n, d, r, part):
    torch.manual_seed(0)
    q = random(2, n, 3, d, dtype=dtype).transpose(1, 2).requires_grad_()
    k, v = (random(2, 3, r, d, dtype=dtype).requires_grad_() for _ in range(2))
    counts = torch.tensor([[r], [5]], device="cuda")
    there = torch.arange(r, device="cuda") < (counts if part else r + 0 * counts)
    scores = q.double() @ k.double().mT * d**-0.5
    scores = scores.masked_fill(~there[:, None, None], -torch.inf)
    expected = scores.softmax(-1) @ v.double()
    out = nystrom_triton.fused_read(q, k, v, there if part else None)
    compare(out, expected, (q, k, v), 1e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("n", "d", "r"), [(1000, 64, 64), (4097, 128, 100), (300, 16, 6)])
@pytest.mark.parametrize("part", [False, True], ids=["all", "some"])
def test_landmarks_ask_by_softmax(dtype, n, d, r, part):
    torch.manual_seed(0)
    k, v = (random(2, n, 3, d, dtype=dtype).transpose(1, 2).requires_grad_() for _ in range(2))
    q = random(2, 3, r, d, dtype=dtype).requires_grad_()
    length = torch.tensor([n, n // 5 if part else n], device="cuda")
    scores = q.double() @ k.double().mT * d**-0.5
    hidden = torch.arange(n, device="cuda") >= length[:, None]
    expected = scores.masked_fill(hidden[:, None, None], -torch.inf).softmax(-1) @ v.double()
    compare(nystrom_triton.fused_ask(q, k, v, length if part else None), expected, (q, k, v), 1e-2)


@pytest.mark.parametrize("dtype", list(LIMITS), ids=str)
@pytest.mark.parametrize(("d", "r"), [(64, 64), (128, 40), (16, 6)])
@pytest.mark.parametrize("part", [False, True], ids=["all", "some"])
def test_landmarks_are_solved_as_exactly_as_in_float32(dtype, d, r, part):
    torch.manual_seed(0)
    q, k, v = (random(2, 3, r, d, dtype=dtype).requires_grad_() for _ in range(3))
    counts = torch.tensor([[r], [5]], device="cuda")
    there = torch.arange(r, device="cuda") < (counts if part else r + 0 * counts)
    upstream = random(2, 3, r, d, dtype=dtype)

    def results(run, wide):
        out = run(*(x.to(wide) for x in (q, k, v)))
        return (out, *torch.autograd.grad(out, (q, k, v), upstream.to(out.dtype)))

    truth = results(lambda *given: landmarks.solve(*given, there, 6), torch.float64)
    plain = results(lambda *given: landmarks.solve(*given, there, 6), torch.float32)
    counts = nystrom_triton.counts_of(there, q)
    found = results(lambda *given: nystrom_solve.fused_solve(*given, counts, 6), dtype)
    ours, theirs = (
        [error(*pair) for pair in zip(made, truth, strict=True)] for made in (found, plain)
    )
    limits = [4 * LIMITS[dtype] * (dtype != torch.float32) + 10 * each + 1e-6 for each in theirs]
    assert all(a < b for a, b in zip(ours, limits, strict=True)), (ours, theirs)


def test_nystromformer_takes_few_launches():
    mixer = Nystromformer().build(Frame(dim=768, heads=12)).cuda().bfloat16()
    x = random(1, 4096, 768, dtype=torch.bfloat16).requires_grad_()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    for _ in range(2):
        torch.autograd.grad(mixer(x).sum(), (x, *mixer.parameters()))
    with torch.profiler.profile(activities=activities) as profile:
        torch.autograd.grad(mixer(x).sum(), (x, *mixer.parameters()))
        torch.cuda.synchronize()
    device = torch.autograd.DeviceType.CUDA
    names = [event.name for event in profile.events() if event.device_type == device]
    assert 10 < len(names) < 120, (len(names), sorted(names))


@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
@pytest.mark.parametrize("u", [1, 7, 100, 256, 1024])
def test_balancing_equals_the_plain_form(causal, u):
    torch.manual_seed(0)
    scores = random(2, 3, u, u).requires_grad_()
    plain = sinkhorn.causal_balance if causal else sinkhorn.balance
    found = sinkhorn.fused_balance(scores, 8, causal=causal)
    expected = plain(scores.double(), 8)
    if u == 1 or (causal and u < 3):  # nothing to weigh: the gradient is 0
        assert torch.equal(found.double(), expected)
        return
    compare(found, expected, (scores,), 1e-5)


MIXERS = {
    "sinkhorn": (Sinkhorn(noise=False), True),
    "sinkhorn both ways": (Sinkhorn(noise=False), False),
    "nystromformer": (Nystromformer(), False),
    "light": (LightConvolution(), True),
    "dynamic": (DynamicConvolution(), False),
}


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("n", [1024, 1000])
def test_mixers_equal_their_plain_form_in_double(name, n):
    config, causal = MIXERS[name]
    torch.manual_seed(0)
    mixer = config.build(Frame(dim=256, heads=4, causal=causal)).cuda().bfloat16()
    x = random(2, n, 256, dtype=torch.bfloat16).requires_grad_()
    valid = torch.arange(n, device="cuda") < torch.tensor([[n], [n // 3]], device="cuda")
    found = [mixer(x), mixer(x, valid=valid)]
    upstream = torch.randn_like(x)
    grads = [torch.autograd.grad(y, x, upstream)[0] for y in found]
    mixer.double()  # takes no kernel of ours
    for y, grad, real in zip(found, grads, (None, valid), strict=True):
        expected = mixer(x.double(), valid=real)
        (wanted,) = torch.autograd.grad(expected, x, upstream.double())
        errors = [error(y, expected), error(grad, wanted)]
        assert max(errors) < 0.02, errors


if __name__ == "__main__":
    half, whole = torch.bfloat16, torch.float32
    calls = [
        (test_tap_sums, (half, False, 1000, 64, 33, 16)),
        (test_tap_sums, (half, True, 777, 48, 31, 30)),
        (test_tap_sums, (whole, False, 777, 48, 31, 30)),
        (test_tap_sums, (whole, True, 1000, 64, 33, 16)),
        (test_tap_sums, (torch.float16, True, 1, 64, 1, 0)),
    ]
    shapes = [(half, 1000, 64, 64), (half, 4097, 128, 100), (torch.float16, 300, 16, 6)]
    for check in (test_landmarks_are_read_by_softmax, test_landmarks_ask_by_softmax):
        calls += [(check, (*shape, part)) for shape, part in product(shapes, (False, True))]
    shapes = [(whole, 64, 64), (half, 64, 64), (half, 128, 40), (torch.float16, 16, 6)]
    solved = product(shapes, (False, True))
    check = test_landmarks_are_solved_as_exactly_as_in_float32
    calls += [(check, (*shape, part)) for shape, part in solved]
    calls += [(test_nystromformer_takes_few_launches, ())]
    cases = product((False, True), (1, 7, 256, 1024))
    calls += [(test_balancing_equals_the_plain_form, args) for args in cases]
    calls += [(test_mixers_equal_their_plain_form_in_double, (name, 1000)) for name in MIXERS]
    calls += [(test_mixers_equal_their_plain_form_in_double, ("nystromformer", 1024))]
    # Most of the time goes to compiling kernels, so several processes share the checks.
    with get_context("spawn").Pool(6) as pool:
        for line in [pool.apply_async(attempt, call) for call in calls]:
            print(line.get(), flush=True)
