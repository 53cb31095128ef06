"""Every kernel computes the same attention: values, log-sum-exp and gradients, for any pattern."""

from contextlib import contextmanager
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.oracle import alibi, assert_same, gradients, heads, oracle
from patterns.expressions import cases, few
from weft.errors import Unsupported, WeftError
from weft.kernels.attend import api, parts
from weft.kernels.attend import planner as planning
from weft.kernels.attend.api import KERNELS, Choice, Request, attend, choose
from weft.kernels.block_sparse import grouping
from weft.patterns import (
    BlockNeighbours,
    Causal,
    Columns,
    Dilated,
    Full,
    Global,
    Keys,
    PerHead,
    Predicate,
    RandomBlocks,
    SameBlock,
    Segments,
    Sink,
    Sliding,
    Strided,
    Window2d,
)

# The patterns of the shipped mechanisms and what makes each of them awkward.
PATTERNS = [
    Full(),
    Causal(),
    Causal() & Sliding(20),
    Sliding(20) | Global(first=3),
    Sliding(9) | Global(first=2, last=5, at=(40, 90)),
    Causal() & (Sliding(16) | Strided(16)),
    Causal() & (SameBlock(16) | Columns(16, 3)),
    Strided(7),
    Dilated(4, 5) | Sink(2),
    BlockNeighbours(16) | Global(first=16, last=9) | RandomBlocks(2, 16, 3, spare=1),
    Causal() & (BlockNeighbours(16, 1, 0) | Sink(16) | RandomBlocks(2, 16, 3, spare=1, past=True)),
    Window2d(16, 3),
    Segments((50, 1, 80, 300)),
    Keys(at=(3, 60, 61)) & Sliding(40) | Sliding(3),
    ~Sliding(5) & Predicate(lambda i, j: (i ^ j) < 40, "xor"),
    Predicate(lambda i, j: (j > 10) & (j < 0), "nothing"),
]
by_name = pytest.mark.parametrize("pattern", PATTERNS, ids=str)


@contextmanager
def small_blocks(size):
    """Many blocks in a short sequence."""
    planning.choose_eager.cache_clear()
    with mock.patch.object(planning, "GATHER_BLOCK", size):
        yield
    planning.choose_eager.cache_clear()


def masks(b, m, kind, seed=0):
    """No mask, keys that are padding, documents packed in a row, or both."""
    generator = torch.Generator().manual_seed(seed)
    valid = torch.rand(b, m, generator=generator) < 0.7
    valid[-1, m // 3 :] = False
    segments = torch.randint(0, 4, (b, m), generator=generator).sort(1).values
    return {
        "plain": {},
        "valid": {"valid": valid},
        "segments": {"segments": segments},
        "both": {"valid": valid, "segments": segments},
    }[kind]


def check(pattern, n, m, kernel, *, g=2, block=16, seed=0, dtype=torch.float64, **options):
    """Values, log-sum-exp and gradients of both against the oracle."""
    inputs = [x.requires_grad_() for x in heads(2, 4, n, 8, g, m, dtype, seed)]
    with small_blocks(block):
        found = attend(*inputs, pattern, kernel=kernel, return_lse=True, **options)
    expected = oracle(*inputs, pattern, **options)
    assert_same(found, expected)
    for ours, theirs in zip(gradients(found, inputs), gradients(expected, inputs), strict=True):
        assert_same([ours], [theirs])


@given(
    case=cases(longest=140),
    kernel=st.sampled_from(["dense", "gather", "auto", "sdpa"]),
    kind=st.sampled_from(["plain", "valid", "segments", "both"]),
    g=st.sampled_from([1, 2, 4]),
    block=st.sampled_from([4, 16, 33, 128]),
    biased=st.booleans(),
    seed=st.integers(0, 99),
)
@few
def test_any_pattern_any_kernel(case, kernel, kind, g, block, biased, seed):
    pattern, n, m = case
    options = masks(2, m, kind, seed) | ({"bias": alibi} if biased else {})
    check(pattern, n, m, kernel, g=g, block=block, seed=seed, **options)


@by_name
@pytest.mark.parametrize("kind", ["plain", "both"])
@pytest.mark.parametrize("kernel", ["dense", "gather", "auto", "sdpa"])
def test_shipped_patterns(pattern, kernel, kind):
    check(pattern, 256, 256, kernel, **masks(2, 256, kind))
    check(pattern, 37, 200, kernel, bias=alibi, scale=0.3, **masks(2, 200, kind))


@pytest.mark.parametrize("kernel", ["dense", "gather", "auto", "sdpa"])
def test_heads_with_patterns_of_their_own(kernel):
    pattern = PerHead(Causal() & Sliding(9), Causal() & Strided(9))
    options = masks(2, 100, "both") | {"bias": alibi}
    inputs = heads(2, 4, 100, 8, 2)
    with small_blocks(16):
        found = attend(*inputs, pattern, kernel=kernel, return_lse=True, **options)
    assert_same(found, oracle(*inputs, pattern, **options))


@pytest.mark.parametrize("kind", ["plain", "both"])
def test_tiles_of_a_picture(kind):
    """In blocks of 128 a picture is cut into tiles, whose order is not that of the pixels."""
    for pattern in (Window2d(48, 3), Window2d(48, 2, 3) | Sink(2)):
        check(pattern, 48 * 16, 48 * 16, "gather", block=128, **masks(2, 48 * 16, kind))


@pytest.mark.parametrize("m", range(160, 177))
def test_keys_beyond_the_end_are_not_read(m):
    """Rows of blocks that look alike share a mask, but not where the last block is short."""
    for pattern in (Sliding(9), ~Sliding(9) & Sliding(20), Dilated(3, 4)):
        for n in (m, m - 3):
            check(pattern, n, m, "gather", block=16)


def test_heads_with_patterns_of_their_own_learn():
    check(PerHead(Sliding(9), Strided(9)), 90, 90, "gather", bias=alibi)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kernel", ["dense", "sdpa", "gather", "auto"])
def test_lower_precision(kernel, dtype):
    for pattern in PATTERNS:
        inputs = [x.requires_grad_() for x in heads(2, 2, 150, 8, 1, dtype=dtype)]
        options = masks(2, 150, "valid")
        with small_blocks(16):
            found = attend(*inputs, pattern, kernel=kernel, **options)
        expected = oracle(*inputs, pattern, **options)[0]
        assert found.dtype == dtype
        assert_same([found], [expected], tolerance=20 * torch.finfo(dtype).eps)
        assert all(grad.isfinite().all() for grad in gradients([found], inputs))


@pytest.mark.parametrize("kernel", ["dense", "sdpa", "gather"])
def test_large_scores_stay_in_the_range_of_half_precision(kernel):
    q, k, v = heads(1, 2, 64, 64, dtype=torch.float16)
    q, k = q * 60, k * 60
    found = attend(q, k, v, Causal() & Sliding(9), kernel=kernel)
    assert ((q.float() @ k.float().mT).abs() > torch.finfo(torch.float16).max).any()
    assert_same([found], oracle(q, k, v, Causal() & Sliding(9))[:1], tolerance=0.05)


@pytest.mark.parametrize("kernel", ["dense", "sdpa", "gather", "auto"])
@pytest.mark.parametrize("n", [128, 130, 256])
def test_any_strides(kernel, n):
    """Heads cut from (b, n, h·d), and axes that stand the wrong way round."""
    for pattern in (Full(), Causal() & Sliding(9), Sink(2) | Sliding(3), SameBlock(64)):
        wide = torch.randn(2, n, 3, 4, 8, dtype=torch.float64)
        permuted = [wide[:, :, a].transpose(1, 2) for a in range(3)]
        flipped = [torch.randn(2, 4, 8, n, dtype=torch.float64).mT for _ in range(3)]
        expanded = [torch.randn(2, 1, n, 8, dtype=torch.float64).expand(-1, 4, -1, -1)] * 3
        for inputs in (permuted, flipped, expanded):
            found = attend(*inputs, pattern, kernel=kernel)
            assert_same([found], oracle(*inputs, pattern)[:1])


@pytest.mark.parametrize("kernel", ["dense", "gather", "sdpa", "auto"])
def test_rows_that_read_nothing_are_zero_and_learn_nothing(kernel):
    pattern = Causal() & Sliding(4)
    inputs = [x.requires_grad_() for x in heads(2, 4, 70, 8, 2)]
    valid = torch.ones(2, 70, dtype=torch.bool)
    valid[0, 20:60], valid[1] = False, False
    with small_blocks(16):
        found = attend(*inputs, pattern, kernel=kernel, valid=valid)
    assert (found[1] == 0).all()
    assert (found[0, :, 23:60] == 0).all()
    assert (found[0, :, 19:23] != 0).all()
    grads = gradients([found], inputs)
    assert all(grad.isfinite().all() for grad in grads)
    assert all((grad[1] == 0).all() for grad in grads)


def test_padding_in_keys_may_hold_anything():
    q, k, v = heads(1, 2, 40, 8)
    valid = torch.arange(40)[None] < 25
    k[:, :, 25:], v[:, :, 25:] = 1e30, 1e30
    expected = oracle(q[:, :, :25], k[:, :, :25], v[:, :, :25], Sliding(6))[0]
    for kernel in ("dense", "gather", "sdpa"):
        found = attend(q, k, v, Sliding(6), valid=valid, kernel=kernel)
        assert_same([found[:, :, :25]], [expected])


def test_what_evaluation_kept_serves_training():
    """Masks and indices are cached; made in inference mode they would refuse to learn."""
    for pattern in PATTERNS:
        parts._index.cache_clear()
        grouping.grouping.cache_clear()
        inputs = [x.requires_grad_() for x in heads(1, 2, 256, 8)]
        for options in ({}, {"bias": alibi}):
            with small_blocks(32), torch.inference_mode():
                attend(*inputs, pattern, kernel="gather", **options)
            with small_blocks(32):
                attend(*inputs, pattern, kernel="gather", **options).sum().backward()


def test_more_queries_than_keys_read_in_full():
    q, k, v = heads(2, 4, 9, 8, 2, 5)
    assert_same([attend(q, k, v)], [oracle(q, k, v, Full())[0]])


def request(pattern, n, **changes):
    settings = {"batch": 1, "heads": 4, "n": n, "m": n, "device": "cpu", "dtype": torch.float32}
    flags = {"learning": True, "masked": False, "biased": False, "dropout": 0.0, "lse": False}
    return Request(pattern, **{**settings, **flags, **changes})


def test_the_plan_says_which_kernel_and_why():
    window = Causal() & Sliding(64)
    assert choose(request(Full(), 5000)) == Choice("sdpa", "no key is left out")
    assert choose(request(Causal(), 5000)) == Choice("sdpa", "no key is left out")
    short, long = choose(request(window, 100)), choose(request(window, 20_000))
    assert (short.kernel, long.kernel) == ("sdpa", "gather")
    assert "times dense at this length" in short.reason
    assert "times dense" in long.reason
    assert long.lowered is not None
    assert choose(request(window, 100, lse=True)).kernel == "sdpa"
    assert choose(request(window, 100, lse=True, biased=True)).kernel == "dense"
    assert choose(request(window, 20_000, lse=True)).kernel == "gather"
    assert choose(request(window, 20_000, device="cuda")).kernel == "flex"
    assert choose(request(window, 20_000, device="cuda", dropout=0.1)).kernel == "gather"
    assert choose(request(window, 20_000, device="cuda", dtype=torch.float64)).kernel == "gather"


@pytest.mark.parametrize("pattern", [Full(), Causal(), Causal() & Sliding(300)], ids=str)
def test_a_gpu_takes_our_kernels_where_torch_would_need_a_mask(pattern):
    """Torch's dense kernel is several times slower under a mask, and the mask may be n × n."""
    half = {"device": "cuda", "dtype": torch.bfloat16, "batch": 8}
    masked = choose(request(pattern, 1000, masked=True, **half))
    assert masked.kernel == "triton"
    assert masked.lowered is not None
    simple = type(pattern) in (Full, Causal)
    assert choose(request(pattern, 1000, **half)).kernel == ("sdpa" if simple else "triton")
    assert choose(request(pattern, 100, masked=True, **{**half, "batch": 1})).kernel == "sdpa"
    assert choose(request(pattern, 1000, masked=True, biased=True, **half)).kernel != "triton"
    wide = request(pattern, 1000, masked=True, **{**half, "dtype": torch.float32})
    assert choose(wide).kernel != "triton"
    assert choose(request(Full(), 200_000, masked=True, **half)).kernel == "sdpa", "a long list"
    longer = request(Full(), 1000, masked=True, **half, m=500)
    assert choose(longer).kernel == "sdpa", "another, shorter sequence is read"


@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "auto"])
def test_an_asked_for_kernel_is_used(kernel):
    for n in (50, 5000):
        asked = request(Sliding(8), n, device="cuda", dtype=torch.bfloat16)
        assert choose(asked, kernel)[:2] == (kernel, "requested")


Q = torch.zeros(2, 4, 10, 8)


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        ((Q[0], Q, Q), {}, "q, k and v are (batch, heads, length, width); got q (4, 10, 8)"),
        ((Q, Q, Q[:, :, :9]), {}, "keys and values must agree in batch, heads and length"),
        ((Q, Q[..., :7], Q), {}, "queries and keys must agree in batch and width"),
        ((Q, Q[:1], Q[:1]), {}, "queries and keys must agree in batch and width"),
        ((Q, Q, Q[..., :7]), {}, "values are as wide as keys, except in kernel='dense'"),
        ((Q, Q[:, :3], Q[:, :3]), {}, "query heads are a multiple of key heads"),
        ((Q, Q[:, :, :0], Q[:, :, :0]), {}, "attention needs one query and one key or more"),
        ((Q, Q[:, :, :5], Q[:, :, :5], Sliding(3)), {}, "got 10 queries and 5 keys"),
        ((Q, Q, Q), {"valid": Q[:, 0, :9, 0] == 0}, "valid is (batch, keys) = (2, 10); got (2, 9)"),
        ((Q, Q, Q), {"valid": Q[:, 0, :, 0]}, "valid is boolean, True where a key is real; got"),
        ((Q, Q, Q), {"segments": Q[0, 0, :, 0]}, "segments is (batch, keys) = (2, 10); got (10,)"),
        ((Q, Q, Q), {"kernel": "fast"}, "kernel is one of auto, dense, sdpa, gather, flex"),
        ((Q, Q, Q, PerHead(*[Causal()] * 3)), {}, "4 heads is not a multiple of 3 patterns"),
        ((Q, Q, Q), {"kernel": "flex", "dropout": 0.1}, "the flex kernel has no dropout"),
    ],
)
def test_bad_input(args, options, message):
    with pytest.raises(WeftError) as caught:
        attend(*args, **options)
    assert message in str(caught.value)


def test_flex_does_not_learn_on_a_cpu():
    with pytest.raises(Unsupported, match="no backward on a CPU; use kernel='gather' or 'auto'"):
        attend(Q.clone().requires_grad_(), Q, Q, Sliding(3), kernel="flex")


@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_a_scale_is_above_zero(scale):
    q, k, v = torch.randn(3, 1, 2, 5, 8)
    with pytest.raises(WeftError, match="above 0; got"):
        attend(q, k, v, scale=scale)


def test_a_pattern_as_text():
    q, k, v = (torch.randn(1, 2, 40, 8) for _ in range(3))
    text = attend(q, k, v, "causal() & sliding(8)")
    assert torch.equal(text, attend(q, k, v, Causal() & Sliding(8)))
    assert not torch.equal(text, attend(q, k, v, "causal() & sliding(9)"))


def test_texts_are_remembered_and_forgotten(monkeypatch):
    monkeypatch.setattr(api, "_TEXTS", 3)
    q, k, v = (torch.randn(1, 1, 8, 4) for _ in range(3))
    for window in range(1, 9):
        expected = attend(q, k, v, Sliding(window))
        assert torch.equal(attend(q, k, v, f"sliding({window})"), expected)
        assert len(api._READ) <= 3


def test_a_text_inside_one_graph():
    compiled = torch.compile(
        lambda q, k, v: attend(q, k, v, "causal()") + 1, fullgraph=True, backend="eager"
    )
    q, k, v = (torch.randn(1, 2, 8, 4) for _ in range(3))
    assert torch.equal(compiled(q, k, v), attend(q, k, v, Causal()) + 1)


def test_arrays_are_not_tensors():
    q = torch.randn(1, 1, 8, 4)
    with pytest.raises(WeftError, match=r"k is a tensor .*; got <class 'numpy.ndarray'>"):
        attend(q, q.numpy(), q)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("causl()", "did you mean 'causal'"),
        ("sliding(windw=3)", "did you mean 'window'"),
        ("sliding(", "expected a name or a value"),
        ("7", "a pattern is a spec such as"),
        (None, "or the same as text"),
        (torch.ones(8, 8), "is a Predicate"),
    ],
)
def test_what_is_no_pattern(given, message):
    q, k, v = (torch.randn(1, 1, 8, 4) for _ in range(3))
    with pytest.raises(WeftError, match=message):
        attend(q, k, v, given)
