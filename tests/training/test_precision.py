"""Half precision: what runs in it, what does not, and processors that would kill the program."""

import subprocess

import pytest
import torch

from weft.errors import WeftError
from weft.training import precision as precisions
from weft.training.precision import Precision

CPU = torch.device("cpu")
a = torch.randn(4, 4)


@pytest.mark.parametrize(
    ("name", "product"),
    [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("float16", torch.float16)],
)
def test_products_are_in_the_named_precision(name, product):
    with Precision(name, CPU).autocast():
        assert (a @ a).dtype == product
    assert (a @ a).dtype == torch.float32
    assert Precision(name, CPU).dtype == torch.float32


def test_float64_is_the_whole_model():
    assert Precision("float64", CPU).dtype == torch.float64


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64"])
def test_only_float16_scales_its_loss(name):
    assert not Precision(name, CPU).scaler().is_enabled()
    assert Precision("float16", CPU).scaler().is_enabled()


class Dead:
    returncode = -4  # SIGILL


@pytest.fixture
def amx(monkeypatch):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(precisions, "_announces_amx", lambda: True)
    precisions._survives.cache_clear()
    yield
    precisions._survives.cache_clear()


def test_a_processor_that_kills_is_refused_with_the_way_out(amx, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: Dead())
    with pytest.raises(WeftError, match="ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16"):
        Precision("bfloat16", CPU)
    Precision("float32", CPU)


def test_the_way_out_is_accepted(amx, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: Dead())
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
    Precision("bfloat16", CPU)
