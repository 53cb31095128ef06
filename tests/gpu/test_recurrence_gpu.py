"""Recurrences on a GPU: the kernels against loops in fp64, and the mixers that take them.

python tests/gpu/test_recurrence_gpu.py        works without pytest's collection, too
"""

from itertools import product

import pytest
import torch
from gpu_checks import attempt, compare, error

from weft.kernels.recurrence import triton as recurrence
from weft.kernels.recurrence.scan import elementwise_scan, linear_scan, scan
from weft.mixers import BRC, GRU, LSTM, SRU, Frame
from weft.mixers.brc import _alone
from weft.mixers.sru import _remember

pytestmark = pytest.mark.gpu
SIZES = [(1, 3), (100, 40), (1000, 768)]
CELLS = {"sru": (_remember, recurrence.fused_sru), "brc": (_alone, recurrence.fused_brc)}
MIXERS = {
    "sru": SRU(),
    "linear sru": SRU(peephole=False),
    "brc": BRC(),
    "lstm": LSTM(),
    "gru": GRU(),
}


def random(*shape, dtype=torch.float32):
    return torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_()


@pytest.mark.parametrize(("n", "c"), SIZES)
def test_the_linear_scan(n, c):
    torch.manual_seed(0)
    gate = torch.sigmoid(random(2, n, c)).detach().requires_grad_()
    b, start = random(2, n, c), random(2, c)
    wide = [x.double() for x in (gate, b, start)]
    expected = scan(lambda now, h, _: now[0] * h + now[1], tuple(wide[:2]), wide[2])
    compare(linear_scan(gate, b, start), expected, (gate, b, start), 1e-5)


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize(("n", "c"), SIZES)
def test_cells(name, n, c):
    torch.manual_seed(0)
    step, fused = CELLS[name]
    widths, count = ((c, c), c) if name == "sru" else ((2 * c, c), 2 * c)
    first, second = (random(2, n, width) for width in widths)
    start = random(2, c)
    weight = (0.1 * random(count)).detach().requires_grad_()  # large ones make errors grow
    wide = [x.double() for x in (first, second, start, weight)]
    expected = scan(step, tuple(wide[:2]), wide[2], (wide[3],))
    out = elementwise_scan(step, (first, second), start, (weight,), fused)
    compare(out, expected, (first, second, start, weight), 1e-4)


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_mixers_equal_themselves_in_double(name, causal, dtype):
    torch.manual_seed(0)
    mixer = MIXERS[name].build(Frame(dim=128, heads=4, causal=causal)).cuda().to(dtype).eval()
    x = random(2, 300, 128, dtype=dtype)
    out = mixer(x)
    upstream = torch.randn_like(out)
    (found,) = torch.autograd.grad(out, x, upstream)
    expected = mixer.double()(x.double())
    (wanted,) = torch.autograd.grad(expected, x, upstream.double())
    limit = 2e-3 if dtype == torch.float32 else 0.05  # cuDNN may multiply in TF32
    errors = [error(out, expected), error(found, wanted)]
    assert max(errors) < limit, errors


@pytest.mark.parametrize("name", MIXERS)
def test_long_sequences_take_few_calls(name):
    """Not one per token: 2,000 tokens in fewer launches than that."""
    mixer = MIXERS[name].build(Frame(dim=128, heads=4, causal=True)).cuda().bfloat16()
    x = random(1, 2000, 128, dtype=torch.bfloat16)
    mixer(x).sum().backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        mixer(x).sum().backward()
    calls = sum(event.count for event in profile.key_averages() if event.key.startswith("aten::"))
    assert calls < 2000, calls


if __name__ == "__main__":
    calls = [(test_the_linear_scan, size) for size in SIZES]
    calls += [(test_cells, (name, *size)) for name, size in product(CELLS, SIZES)]
    cases = product(MIXERS, (False, True), (torch.float32, torch.bfloat16))
    calls += [(test_mixers_equal_themselves_in_double, args) for args in cases]
    calls += [(test_long_sequences_take_few_calls, (name,)) for name in MIXERS]
    print("cuDNN", torch.backends.cudnn.version(), flush=True)
    for check, args in calls:
        print(attempt(check, args), flush=True)
