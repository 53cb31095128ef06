"""One planner: every fast kernel says why it does not take a call, on made-up requests."""

import pytest
import torch

from weft.errors import WeftError
from weft.kernels.attend.api import KERNELS, Request, attend, choose, plan_only
from weft.kernels.attend.planner import choose_in_graph, remember_spec
from weft.kernels.planner import context
from weft.kernels.planner.choice import Choice, Choices
from weft.kernels.planner.fast import FAST, HALF, Rule
from weft.mixers import MIXERS
from weft.patterns import Causal, Full, Global, PerHead, Sliding, Strided

assert MIXERS, "they bring their kernels with them"
GPU = {"device": "cuda", "dtype": torch.bfloat16, "batch": 8, "heads": 4}


def request(pattern, n=4096, **changes):
    usual = {"batch": 1, "heads": 4, "n": n, "m": n, "device": "cpu", "dtype": torch.float32}
    flags = {"learning": True, "masked": False, "biased": False, "dropout": 0.0, "lse": False}
    return Request(pattern, **{**usual, **flags, **GPU, **changes})


@pytest.mark.parametrize(
    ("changes", "kernel", "rejected"),
    [
        ({}, "triton", ()),
        (
            {"device": "cpu"},
            "gather",
            ("triton: runs on a GPU; got cpu", "flex: runs on a GPU; got cpu"),
        ),
        (
            {"dtype": torch.float64},
            "gather",
            ("triton: takes float16 and bfloat16; got float64", "flex: has no float64"),
        ),
        ({"dtype": torch.float32}, "flex", ("triton: takes float16 and bfloat16; got float32",)),
        ({"width": 48}, "flex", ("triton: takes heads of 16, 32, 64 and 128; got 48",)),
        ({"biased": True}, "flex", ("triton: takes no bias",)),
        (
            {"biased": True, "dropout": 0.1},
            "gather",
            ("triton: takes no bias", "flex: has no dropout"),
        ),
    ],
)
def test_a_rejected_kernel_says_why(changes, kernel, rejected):
    found = choose(request(Causal() & Sliding(64), **changes))
    assert (found.kernel, found.rejected) == (kernel, rejected)
    assert all(f"not {text}" in found.why for text in rejected)


PATTERNS = [Full(), Causal(), Sliding(64), Causal() & Sliding(64), Sliding(64) | Global(first=2)]
CHANGES = [
    {},
    {"masked": True},
    {"masked": True, "aligned": True},
    {"dropout": 0.1},
    {"biased": True},
    {"lse": True},
    {"dtype": torch.float32},
    {"device": "cpu"},
    {"width": 48},
    {"n": 100, "m": 300},
    {"n": 300, "m": 100},
]


def before(pattern, kernel, r):
    """The decision inside a graph as it stood in `attend` before there was one planner."""
    half = r.dtype in (torch.float16, torch.bfloat16)
    known = type(pattern) in (Full, Causal, Sliding) and r.n == r.m
    width = r.width % 8 == 0 and r.width <= 128 and r.aligned >= r.masked
    dropped = type(pattern) is Sliding and r.dropout > 0 and r.width > 16
    flash = r.device == "cuda" and half and known and width and (r.masked or dropped)
    if kernel == "auto" and flash and not r.biased and not r.lse:
        return "flash"
    chosen = kernel == "triton" or (kernel == "auto" and r.device == "cuda" and half)
    fits = chosen and not r.biased and not r.lse and r.width in (16, 32, 64, 128)
    ours = "global" not in str(pattern) and r.n <= r.m and fits
    simple = type(pattern) in (Full, Causal) and kernel == "auto" and not r.lse
    if simple and not (ours and r.masked):
        return "sdpa"
    return "triton" if ours else None


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_decisions_inside_a_graph_are_those_of_before(pattern, changes):
    for kernel in KERNELS:
        asked = request(pattern, graph=True, **changes)
        found = choose_in_graph(asked, kernel)
        assert (found and found.kernel) == before(pattern, kernel, asked), kernel


def test_a_call_that_leaves_the_graph_says_so():
    found = choose(request(Sliding(64) | Global(first=2), graph=True))
    assert found.kernel == "triton"
    assert found.reason.startswith("planned outside the graph; blocks cost")
    assert choose(request(Sliding(64), graph=True)).reason == "an operator of the graph"


def test_a_graph_and_an_eager_call_ask_the_same_rules(monkeypatch):
    """A rule that changes changes both."""
    from weft.kernels.attend import planner

    planner.choose_eager.cache_clear()
    monkeypatch.setattr(planner, "WIDTHS", (32,))
    for graph in (False, True):
        found = choose(request(Sliding(64), graph=graph))
        assert found.kernel == "flex"
    planner.choose_eager.cache_clear()


@pytest.mark.parametrize("operation", sorted(FAST))
def test_mechanisms_say_why(operation):
    fast = FAST[operation]
    dtype = (fast.dtypes or HALF)[0]
    good = fast.choose("cuda", (dtype, dtype))
    assert (good.kernel, good.operation, good.rejected) == (fast.kernel, operation, ())
    cpu = fast.choose("cpu", (dtype,))
    assert (cpu.kernel, cpu.rejected) == (fast.plain, (f"{fast.kernel}: runs on a GPU; got cpu",))
    rule = fast.choose("cuda", (dtype,), rules=(Rule(False, "takes heads of 16", 24),))
    assert rule.rejected == (f"{fast.kernel}: takes heads of 16; got 24",)
    graph = fast.choose("cuda", (dtype,), graph=True)
    assert (graph.kernel == fast.kernel) == fast.graph
    if fast.dtypes is not None:
        other = fast.choose("cuda", (dtype, torch.float64))
        assert other.kernel == fast.plain
        assert "got" in other.why
        assert "float64" in other.why


def test_operations_are_registered_once():
    with pytest.raises(WeftError, match="registered twice"):
        type(FAST["convolution"])("convolution")


def test_choices_are_recorded_and_not_after_it():
    q = torch.randn(1, 4, 64, 16)
    with context.recording() as found:
        attend(q, q, q, PerHead(Causal(), Sliding(2)))
        with context.recording() as inner:
            attend(q, q, q)
    attend(q, q, q)
    assert [choice.kernel for choice in found] == ["sdpa", "sdpa", "sdpa"]
    assert len(inner) == 1


def test_a_forced_kernel_is_taken_where_none_is_asked_for():
    q = torch.randn(1, 4, 64, 16)
    with context.forced("dense"), context.recording() as found:
        attend(q, q, q)
        attend(q, q, q, Sliding(4), kernel="gather")
    assert [choice.kernel for choice in found] == ["dense", "gather"]
    with pytest.raises(WeftError, match="a kernel to force is one of"), context.forced("fast"):
        pass
    with context.recording() as found:
        attend(q, q, q)
    assert found[0].kernel == "sdpa", "it ends with the block"


def test_another_device_is_assumed_for_notes_and_runs_nothing():
    fast, x = FAST["convolution"], torch.randn(1, 1, 4, 8)
    with context.assumed("cuda"), context.recording() as found:
        assert not fast.takes(x, x), "there is no GPU here"
    assert found[0].kernel == "triton"
    with context.assumed("cuda", graph=True), context.recording() as found:
        assert not fast.takes(x, x)
    assert found[0].rejected == ("triton: cannot be part of a compiled graph",)
    with context.forced("triton"):
        assert fast.takes(x, x), "forced, it runs interpreted"
    with context.forced("torch"):
        assert not fast.takes(x, x)


def test_the_table_shows_place_kernel_and_reason():
    twice = [Choice("sdpa", "no key is left out", place="layers.0")] * 2
    other = Choice("torch", "runs anywhere", "convolution", ("triton: runs on a GPU; got cpu",))
    lines = str(Choices([*twice, other])).splitlines()
    assert lines[0].split() == ["place", "operation", "kernel", "why"]
    assert lines[1].split(maxsplit=3)[:3] == ["layers.0", "attend", "2×"]
    assert lines[2].endswith("torch    runs anywhere; not triton: runs on a GPU; got cpu")
    assert "no operation" in str(Choices())


def test_remembered_text_is_that_of_the_value():
    assert remember_spec(Causal() & Strided(3))._graph_spec == (Causal() & Strided(3)).spec


def test_heads_that_share_a_pattern_are_planned_together():
    q = torch.empty(1, 8, 4096, 64, dtype=torch.bfloat16, device="meta")
    with context.assumed("cuda"), context.replaced(plan_only), context.recording() as found:
        attend(q, q, q, PerHead(Sliding(64), Full()))
    wanted = request(Sliding(64), batch=1, heads=4, learning=False)
    assert found[0] == choose(wanted) != choose(wanted._replace(heads=8)), "prices follow the heads"
    assert found[1].kernel == "sdpa"


@pytest.mark.parametrize(
    ("pattern", "changes", "block"),
    [
        (Sliding(9), {}, 32),
        (Causal() & Sliding(33), {"n": 20_000, "m": 20_000}, 32),
        (Sliding(17) | Global(first=2), {}, 32),
        (Sliding(900), {}, 128),
        (Sliding(9), {"n": 1100, "m": 1100}, 128),
        (Sliding(9), {"device": "cuda", "dtype": torch.float64}, 128),
    ],
)
def test_narrow_patterns_run_in_small_blocks_on_a_cpu(pattern, changes, block):
    found = choose(request(pattern, **{"device": "cpu", **changes}))
    assert (found.kernel, found.block) == ("gather", block)


@pytest.mark.parametrize("pattern", [Sliding(9), Causal() & Sliding(5) | Causal() & Global(2)])
def test_small_blocks_compute_the_same(pattern):
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 1600, 8, dtype=torch.float64, generator=generator)
    q.requires_grad_()
    valid = torch.arange(1600)[None] < 1500
    with context.recording() as found:
        out = attend(q, k, v, pattern, valid=valid)
    assert {(each.kernel, each.block) for each in found} == {("gather", 32)}
    (grad,) = torch.autograd.grad(out.square().sum(), q)
    i = torch.arange(1600)
    seen = pattern.sees(i[:, None], i[None], 1600) & valid
    scores = (q @ k.mT / 8**0.5).masked_fill(~seen, float("-inf"))
    wanted = scores.softmax(-1) @ v
    assert (out - wanted)[:, :, :1500].abs().max() < 1e-12
    (other,) = torch.autograd.grad(wanted[:, :, :1500].square().sum(), q)
    assert (grad - other)[:, :, :1500].abs().max() < 1e-10
