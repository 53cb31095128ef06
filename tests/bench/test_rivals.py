"""Rivals: the layers of the Transformers library do the work they are compared on."""

import subprocess
import sys

import pytest
import torch

from weft.bench import Bench, Case, Setting, check, choose
from weft.bench.rivals import RIVALS
from weft.errors import WeftError

SETTING = Setting(heads=2, head_dim=8)
LONGFORMER = "transformers_longformer(window=32, global_tokens=5)"
COMPILED = "compiled_linear_attention"
pytest.importorskip("transformers", reason="the rivals are its layers")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_its_longformer_does_the_same_work(dtype):
    setting = Setting(heads=2, head_dim=8, dtype=dtype)
    case = Case("rival", LONGFORMER)
    found = check(case, case.build(setting, 128), setting, 128, {})
    assert found.reason is None
    assert found.error <= 1


@pytest.mark.parametrize("other", [{"window": 34}, {"window": 30}, {"global_tokens": 4}], ids=str)
def test_its_longformer_with_another_setting_does_not(other):
    case = Case("rival", LONGFORMER)
    module = case.build(SETTING, 128)
    changed = {"window": 32, "global_tokens": 5, **other}
    asked = RIVALS.make("transformers_longformer", **changed)
    right = module.reference

    def reference(x):
        module.config, kept = asked, module.config
        try:
            return right(x)
        finally:
            module.config = kept

    module.reference = reference
    inputs = case.inputs(SETTING, 128)
    torch.testing.assert_close(module(*inputs), right(*inputs), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(module(*inputs), reference(*inputs), rtol=1e-4, atol=1e-4)


def test_all_take_their_turns():
    cases = choose("", rivals="all")
    assert [case.name for case in cases[1:]] == list(RIVALS)
    cases = [case for case in cases if case.name != COMPILED]
    bench = Bench(cases=cases, setting=SETTING, lengths=[1024], rounds=1)
    rows = [row for some in bench.run() for row in some]
    assert [row["error"] for row in rows] == [None] * 8
    assert all(row["median_s"] > 0 for row in rows)


def test_the_compiled_rival_does_the_same_work(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    causal, case = Setting(heads=2, head_dim=8, causal=True), Case("rival", COMPILED)
    module, x = case.build(causal, 256), case.inputs(causal, 256)
    expected = module.reference(*x)
    torch.testing.assert_close(module(*x), expected, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        module.to_qkv.weight.mul_(1.1)
    assert not torch.allclose(module(*x), expected, rtol=1e-4, atol=1e-4)


def test_what_they_refuse():
    causal = Setting(heads=2, head_dim=8, causal=True)
    for name in ("transformers_longformer", "transformers_bigbird"):
        with pytest.raises(WeftError, match=f"{name} cannot be causal"):
            Case("rival", name).build(causal, 1024)
    Case("rival", "transformers_reformer").build(causal, 1024)
    with pytest.raises(WeftError, match="chunked einsum is the causal form"):
        Case("rival", COMPILED).build(SETTING, 1024)
    with pytest.raises(WeftError, match="multiples of 128; got 100"):
        Case("rival", COMPILED).build(causal, 100)
    with pytest.raises(WeftError, match="sparse above 704 tokens, in multiples of 64; got 512"):
        Case("rival", "transformers_bigbird").build(SETTING, 512)
    with pytest.raises(WeftError, match="multiples of 64; got 100"):
        Case("rival", "transformers_reformer").build(SETTING, 100)


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers.models.reformer.modeling_reformer", None)
    with pytest.raises(WeftError, match="pip install transformers"):
        Case("rival", "transformers_reformer").build(SETTING, 1024)


def test_a_benchmark_without_rivals_does_not_load_it():
    program = "import sys, weft.bench; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
