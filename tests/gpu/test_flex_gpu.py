"""The fused kernels on a GPU against attention in fp64, and how often they are compiled.

Needs torch and pytest alone. As a plain script: `PYTHONPATH=src python tests/gpu/test_flex_gpu.py`.
"""

import sys
import time

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters

from weft.kernels.attend.api import attend
from weft.kernels.block_sparse import flex
from weft.patterns import (
    Axis,
    BlockNeighbours,
    Causal,
    Columns,
    Dilated,
    Global,
    PerHead,
    RandomBlocks,
    SameBlock,
    Sink,
    Sliding,
    Strided,
    Window2d,
)

pytestmark = pytest.mark.gpu

# What the shipped mechanisms read, at their usual sizes.
PATTERNS = {
    "sliding": Causal() & Sliding(256),
    "sinks": Causal() & (Sliding(200) | Sink(4)),
    "longformer": Sliding(257) | Global(first=3),
    "block_local": BlockNeighbours(128, 0, 0),
    "strided": Causal() & (Sliding(128) | Strided(128)),
    "fixed": Causal() & (SameBlock(128) | Columns(128, 8)),
    "columns": Causal() & Columns(128, 8),
    "bigbird": BlockNeighbours(64) | Global(first=64, last=64) | RandomBlocks(3, 64, 7, spare=1),
    "causal bigbird": Causal()
    & (BlockNeighbours(64, 1, 0) | Sink(64) | RandomBlocks(3, 64, 7, spare=1, past=True)),
    "rows": Causal() & Axis(32, "x"),
    "columns of a picture": Causal() & Axis(32, "y"),
    "picture": Window2d(64, 5),
    "dilated": PerHead(Sliding(129), Dilated(65, 4)),
    "halves": PerHead(Causal() & Sliding(128), Causal() & Strided(128)),
    "negative": Causal() & ~Sliding(100) & Sliding(400),
}
LENGTHS = (1000, 4096, 8192)
HEADS, KEY_HEADS, WIDTH = 4, 2, 64
# Relative error allowed, of all values together and of the worst row.
ALLOWED = {
    torch.float32: (2e-5, 2e-3),
    torch.float16: (2e-3, 2e-2),
    torch.bfloat16: (1e-2, 6e-2),
}


def alibi(head, i, j):
    return -(2.0 ** -(2.0 * (head + 1))) * (i - j).abs()


def tensors(n, m, dtype, device, seed=0):
    """q, k and v as a projection leaves them: (b, n, h, d) in memory."""
    generator = torch.Generator(device).manual_seed(seed)
    shapes = ((2, n, HEADS, WIDTH), (2, m, KEY_HEADS, WIDTH), (2, m, KEY_HEADS, WIDTH))
    made = [torch.randn(s, generator=generator, device=device, dtype=dtype) for s in shapes]
    return [x.transpose(1, 2).detach().requires_grad_() for x in made]


def masks(kind, m, device):
    place = torch.arange(m, device=device)
    valid = place < torch.tensor([[m], [m - m // 3]], device=device)
    segments = (place // (m // 3 + 1)).expand(2, -1)
    return {
        "plain": {},
        "padding": {"valid": valid},
        "documents": {"segments": segments},
        "bias": {"bias": alibi},
        "all": {"valid": valid, "segments": segments, "bias": alibi},
    }[kind]


def exact(q, k, v, pattern, given, weights):
    """Values, log-sum-exp and gradients in fp64, one head at a time."""
    q, k, v = (x.detach().double().requires_grad_() for x in (q, k, v))
    (b, h, n, d), m, device = q.shape, k.shape[2], q.device
    i, j = torch.arange(m - n, m, device=device)[:, None], torch.arange(m, device=device)[None, :]
    outs, lses = torch.zeros_like(q), torch.zeros_like(q[..., 0])
    for row in range(b):
        for head in range(h):
            seen = pattern.head(head, h).sees(i, j, m).expand(n, m)
            if "valid" in given:
                seen = seen & given["valid"][row]
            if "segments" in given:
                own = given["segments"][row]
                seen = seen & (own[m - n :, None] == own[None, :])
            shared = head * k.shape[1] // h
            scores = q[row, head] @ k[row, shared].T * d**-0.5
            if "bias" in given:
                scores = scores + given["bias"](torch.tensor(head, device=device), i, j)
            alive = seen.any(-1)
            scores = scores.masked_fill(~(seen | ~alive[:, None]), -torch.inf)
            out = (scores.softmax(-1) @ v[row, shared]).masked_fill(~alive[:, None], 0.0)
            lse = scores.logsumexp(-1).masked_fill(~alive, -torch.inf)
            live = torch.where(alive, lse, 0.0)
            wo, wl = (w[row, head].double() for w in weights)
            ((out * wo).sum() + (live * wl).sum()).backward()
            outs[row, head], lses[row, head] = out.detach(), lse.detach()
    return (outs.detach(), lses.detach()), [x.grad for x in (q, k, v)]


def compare(found, expected, allowed, what):
    assert not found.isnan().any(), f"{what}: NaN"
    dead = expected == -torch.inf
    assert (dead == (found == -torch.inf)).all(), f"{what}: −inf stands elsewhere"
    error = (found.double() - expected).masked_fill(dead, 0.0)
    scale = expected.masked_fill(dead, 0.0).square().mean().sqrt() + 1e-12
    whole = error.square().mean().sqrt() / scale
    worst = error.square().mean(-1).sqrt().max() / scale
    assert whole <= allowed[0], f"{what}: relative error {whole:.1e} exceeds {allowed[0]:.1e}"
    assert worst <= allowed[1], f"{what}: one row is off by {worst:.1e}, over {allowed[1]:.1e}"


def check(name, n, dtype, kernel, kind="plain", m=None, device="cuda"):
    """Forward and backward of one pattern."""
    pattern, m = PATTERNS[name], m or n
    inputs, given = tensors(n, m, dtype, device), masks(kind, m, device)
    generator = torch.Generator(device).manual_seed(1)
    weights = [
        torch.randn(2, HEADS, n, WIDTH, generator=generator, device=device, dtype=dtype),
        torch.randn(2, HEADS, n, generator=generator, device=device),
    ]
    out, lse = attend(*inputs, pattern, kernel=kernel, return_lse=True, **given)
    live = torch.where(lse.isfinite(), lse, 0.0)
    grads = torch.autograd.grad((out * weights[0]).sum() + (live * weights[1]).sum(), inputs)
    (true_out, true_lse), true_grads = exact(*inputs, pattern, given, weights)
    what = f"{name}, {n} of {m}, {dtype}, {kernel}, {kind}"
    compare(out, true_out, ALLOWED[dtype], f"{what}: values")
    compare(lse, true_lse, ALLOWED[dtype], f"{what}: log-sum-exp")
    for label, ours, theirs in zip("qkv", grads, true_grads, strict=True):
        wide = tuple(4 * x for x in ALLOWED[dtype])
        compare(ours, theirs, wide, f"{what}: gradient of {label}")


# (pattern, length, dtype, kernel, masks): each pattern at each length, each kernel in its place.
HALF = [(name, n, torch.bfloat16, "auto", "plain") for name in PATTERNS for n in LENGTHS]
FUSED = [
    *((name, 1000, torch.bfloat16, "triton", "padding") for name in PATTERNS),
    *((name, 4096, torch.bfloat16, "triton", "documents") for name in ("longformer", "strided")),
    *((name, 4096, torch.float16, "triton", "plain") for name in ("sliding", "fixed")),
]
FLEX = [
    *((name, n, torch.float32, "flex", "plain") for name in ("sliding", "fixed") for n in LENGTHS),
    *((name, 4096, torch.bfloat16, "flex", "plain") for name in ("longformer", "strided")),
    ("longformer", 1000, torch.bfloat16, "flex", "all"),
    ("strided", 4096, torch.bfloat16, "auto", "bias"),
    ("causal bigbird", 4352, torch.float32, "flex", "padding"),
    ("halves", 1000, torch.bfloat16, "auto", "bias"),
]
CASES = HALF + FUSED + FLEX


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_fp64(case):
    check(*case)


@pytest.mark.parametrize("name", ["sliding", "fixed"])
def test_a_decoder_continues(name):
    check(name, 300, torch.bfloat16, "auto", m=4096)


@pytest.mark.parametrize("name", ["sliding", "longformer", "fixed"])
def test_lengths_compile_few_times(name):
    """Twenty lengths, three graphs at most."""
    flex._call.cache_clear()
    torch._dynamo.reset()
    counters.clear()
    parts = 0
    for n in range(1024, 1024 + 20 * 200, 200):
        inputs = tensors(n, n, torch.bfloat16, "cuda")
        attend(*inputs, PATTERNS[name], kernel="flex").sum().backward()
        parts = max(parts, flex._call.cache_info().currsize)
    graphs = counters["stats"]["unique_graphs"]
    assert 1 <= graphs <= 3 * parts, f"{graphs} graphs for {parts} kernels"


def test_our_own_kernels_are_not_compiled_anew():
    """Neither a pattern nor a length is a reason for dynamo to work."""
    counters.clear()
    for name in ("sliding", "longformer", "strided"):
        for n in (1000, 1300, 2048):
            inputs = tensors(n, n, torch.bfloat16, "cuda")
            attend(*inputs, PATTERNS[name], kernel="triton").sum().backward()
    assert counters["stats"]["unique_graphs"] == 0


def test_a_passed_limit_raises():
    """Instead of falling back to a kernel that is slower by orders of magnitude."""
    flex._call.cache_clear()
    torch._dynamo.reset()

    def run():
        for n in (1024, 1280, 1536, 1792):
            attend(*tensors(n, n, torch.float32, "cuda"), PATTERNS["sliding"], kernel="flex")

    settings = {"recompile_limit": 1, "automatic_dynamic_shapes": False}
    refusal = pytest.raises(Exception, match=r"(?i)recompile|cache_size")
    with torch._dynamo.config.patch(**settings), refusal:
        run()
    torch._dynamo.reset()
    flex._call.cache_clear()


def test_no_operation_sees_all_pairs():
    """65,536 tokens: 4 GiB would hold one boolean for each pair."""
    n = 65_536
    for name in ("sliding", "longformer", "strided", "bigbird"):
        inputs = tensors(n, n, torch.bfloat16, "cuda")
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        attend(*inputs, PATTERNS[name]).sum().backward()
        assert torch.cuda.max_memory_allocated() - before < 2**30


def main():
    """Every check, one line each; a word as argument chooses those whose line holds it."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    checks = [(str(case), lambda case=case: check(*case)) for case in CASES]
    checks += [
        (f"decoder {name}", lambda n=name: test_a_decoder_continues(n)) for name in ("fixed",)
    ]
    checks += [
        (f"lengths {name}", lambda n=name: test_lengths_compile_few_times(n))
        for name in ("sliding", "longformer", "fixed")
    ]
    whole = (
        test_our_own_kernels_are_not_compiled_anew,
        test_a_passed_limit_raises,
        test_no_operation_sees_all_pairs,
    )
    checks += [(each.__name__, each) for each in whole]
    failed = 0
    for what, run in checks:
        if wanted not in what:
            continue
        start = time.perf_counter()
        try:
            run()
            verdict = "ok"
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            failed += 1
            verdict = f"FAILED {type(error).__name__}: {str(error)[:300]}"
        print(f"{time.perf_counter() - start:6.1f} s  {what}: {verdict}", flush=True)
    print(f"{failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
