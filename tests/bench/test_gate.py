"""The gate: right layers pass, wrong ones do not, and the same kernels are checked as measured."""

from unittest.mock import patch

import pytest
import torch

import weft.kernels.attend.api as attend_module
from weft.bench import Case, Setting, check
from weft.bench import cases as case_module
from weft.bench.plans import planned, signature
from weft.errors import Unsupported, WeftError
from weft.kernels.planner.context import recording
from weft.mixers import MIXERS
from weft.patterns import pattern

SETTING = Setting(heads=2, head_dim=8)
N = 96


def gate(case, setting=SETTING, n=N, change=None):
    module = case.build(setting, n)
    if change is not None:
        right = module.forward
        module.forward = lambda *inputs: change(right, *inputs)
    return check(case, module, setting, n, {})


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_layer_passes(name, dtype):
    causal = not MIXERS[name]().traits.bidirectional
    found = gate(Case("layer", name), Setting(heads=2, head_dim=8, dtype=dtype, causal=causal))
    assert found.reason is None
    assert 0 <= found.error <= 1
    assert found.length == N


@pytest.mark.parametrize(
    "case",
    [Case("core", "full"), Case("core", "sliding_window(window=9)"), Case("pattern", "strided(5)")],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_cores_pass(case, dtype):
    assert gate(case, Setting(heads=2, head_dim=8, dtype=dtype, causal=True)).reason is None


def test_heads_share_keys():
    shared = Setting(heads=4, head_dim=8, kv_heads=2, causal=True)
    layer = Case("layer", "nsa").build(shared, N).mixer
    assert (layer.frame.heads, layer.frame.kv_heads) == (4, 2)
    q, k, v = Case("core", "full").inputs(shared, N)
    assert (q.shape[1], k.shape[1], v.shape[1]) == (4, 2, 2)
    for case in (Case("layer", "nsa"), Case("core", "full"), Case("pattern", "strided(5)")):
        assert gate(case, shared).reason is None
    with pytest.raises(Unsupported, match="rivals have keys for every head; got kv_heads=2"):
        Case("rival", "compiled_linear_attention").build(shared, N)
    with pytest.raises(WeftError, match="kv_heads divides heads; got kv_heads=3, heads=4"):
        Setting(heads=4, kv_heads=3)


def off_by_little(right, *inputs):
    return right(*inputs) * 1.001


def one_token_wrong(right, *inputs):
    out = right(*inputs).clone()
    out[:, 17] = out[:, 18]
    return out


def gradient_wrong(right, x):
    return right(x) + 0.01 * (x - x.detach())


def not_finite(right, *inputs):
    return right(*inputs) * torch.where(torch.arange(inputs[0].shape[-1]) == 3, float("nan"), 1.0)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (off_by_little, "wrong output"),
        (one_token_wrong, "wrong output"),
        (gradient_wrong, "wrong gradient of input 0"),
        (not_finite, "wrong output: error inf"),
    ],
)
@pytest.mark.parametrize("name", ["full", "longformer(window=9)"])
def test_a_wrong_layer_does_not_pass(name, change, what):
    found = gate(Case("layer", name), change=change)
    assert found.reason.startswith(what)


def test_a_wrong_pattern_does_not_pass():
    """One key too many."""

    def one_too_wide(right, q, k, v):
        return attend_module.attend(q, k, v, pattern("sliding(10)"))

    assert gate(Case("pattern", "sliding(9)")).reason is None
    assert gate(Case("pattern", "sliding(9)"), change=one_too_wide).reason is not None


def test_without_a_reference_the_output_is_at_least_finite(monkeypatch):
    monkeypatch.delattr(case_module.PatternCore, "reference")
    case = Case("pattern", "full")
    assert gate(case).reason is None
    assert gate(case, change=not_finite).reason == "the output is not finite"


@pytest.mark.parametrize(
    "case",
    [
        Case("pattern", "sliding(64)"),
        Case("pattern", "causal & (sliding(16) | strided(64))"),
        Case("pattern", "per_head(sliding(8), full)"),
        Case("layer", "longformer(window=65, global_first=3)"),
        Case("layer", "full"),
        Case("layer", "fnet"),
    ],
    ids=str,
)
@pytest.mark.parametrize("n", [256, 1536])
def test_plans_are_those_of_a_real_pass(case, n):
    module, inputs = case.build(SETTING, n), case.inputs(SETTING, n)
    with recording() as real, torch.no_grad():
        module(*inputs)
    assert list(planned(module, inputs)) == real


def test_signatures():
    case = Case("pattern", "causal & (sliding(16) | strided(64))")
    found = signature(planned(case.build(SETTING, 2048), case.inputs(SETTING, 2048)))
    assert found == "gather32(natural+fold)"
    case = Case("layer", "longformer(window=33, global_first=200)")
    found = signature(planned(case.build(SETTING, 2048), case.inputs(SETTING, 2048)))
    assert found == "gather32(natural+keys)+sdpa"


def test_the_check_runs_the_measured_kernels_where_it_can():
    """At 512 tokens a window of 300 is dense attention; at 4096 it is not."""
    case = Case("pattern", "sliding(300)")
    short = signature(planned(case.build(SETTING, 512), case.inputs(SETTING, 512)))
    found = gate(case, n=4096)
    assert short == "sdpa"
    assert found.kernels == "gather64(natural)"
    assert (found.length, found.same_kernels) == (2048, True)  # 1024 has blocks of 128
    wide = gate(Case("pattern", "sliding(1200)"), n=4096)
    assert (wide.length, wide.same_kernels) == (2048, False)


def test_what_passed_is_remembered():
    case, passed = Case("pattern", "sliding(8)"), {}
    module = case.build(SETTING, 1024)
    first = check(case, module, SETTING, 1024, passed)
    with patch("weft.bench.gate.compare", side_effect=AssertionError("compared again")):
        assert check(case, module, SETTING, 1024, passed) == first
        with pytest.raises(AssertionError, match="compared again"):
            check(Case("pattern", "sliding(9)"), module, SETTING, 1024, passed)
