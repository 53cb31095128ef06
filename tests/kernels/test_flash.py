"""Padded rows as sequences one behind another; torch's kernel itself runs on a GPU only.

Here a plain loop over sequences stands in for it, so that edges, windows and layouts are checked.
"""

import pytest
import torch
from oracle import heads, oracle

from weft.errors import Unsupported
from weft.kernels import flash
from weft.kernels.attend import Request, attend, plan
from weft.patterns import Causal, Full, Sliding, Strided

N, LENGTHS = 12, (12, 5, 0, 1)
VALID = torch.arange(N) < torch.tensor(LENGTHS)[:, None]
PATTERNS = [Full(), Causal(), Sliding(1), Sliding(4), Sliding(50)]


def loop(q, k, v, edges, longest, reach, causal, *, scale, dropout):
    """What the kernel computes, one sequence, head and query after another."""
    assert longest == N
    assert dropout == 0.0
    if edges is None:
        rows = [
            loop(
                *x,
                torch.tensor([0, N], dtype=torch.int32),
                N,
                reach,
                causal,
                scale=scale,
                dropout=dropout,
            )
            for x in zip(q, k, v, strict=True)
        ]
        return torch.stack(rows)
    assert edges.dtype == torch.int32
    out = torch.full_like(q, torch.nan)
    for start, stop in zip(edges.tolist(), edges.tolist()[1:], strict=False):
        for i in range(start, stop):
            least = start if reach is None else max(start, i - reach)
            most = i + 1 if causal else stop if reach is None else min(stop, i + reach + 1)
            scores = (k[least:most] * q[i]).sum(-1) * scale  # (m, h)
            out[i] = (scores.softmax(0)[..., None] * v[least:most]).sum(0)
    return out


@pytest.fixture
def _looped(monkeypatch):
    monkeypatch.setattr(flash, "sequences", loop)


def found_and_wanted(pattern, valid, groups=2):
    q, k, v = heads(len(LENGTHS), 4, N, 8, g=groups)
    found = flash.flash_attention(q, k, v, pattern, valid, scale=0.3, dropout=0.0)
    return found, oracle(q, k, v, pattern, valid, scale=0.3)[0]


@pytest.mark.usefixtures("_looped")
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("padded", [True, False])
def test_real_rows_are_those_of_the_equation(pattern, padded):
    found, wanted = found_and_wanted(pattern, VALID if padded else None)
    assert not found.isnan().any(), "a place was not written"
    real = VALID if padded else torch.ones_like(VALID)
    real = real[:, None].expand(found.shape[:3])
    torch.testing.assert_close(found[real], wanted[real])


def late(valid):
    return torch.cat((flash_ends(valid)[:1], flash_ends(valid)[1:].roll(1)))


def without_padding(valid):
    return torch.arange(0, valid.numel() + 1, valid.shape[1], dtype=torch.int32)


flash_ends = flash.ends


@pytest.mark.usefixtures("_looped")
@pytest.mark.parametrize("broken", [late, without_padding])
def test_wrong_ends_show(monkeypatch, broken):
    monkeypatch.setattr(flash, "ends", broken)
    found, wanted = found_and_wanted(Full(), VALID)
    real = VALID[:, None].expand(found.shape[:3])
    assert not torch.allclose(found[real], wanted[real], equal_nan=False)


@pytest.mark.usefixtures("_looped")
def test_a_window_one_too_wide_shows(monkeypatch):
    monkeypatch.setattr(flash, "reach", lambda pattern: pattern.window)
    found, wanted = found_and_wanted(Sliding(4), None)
    assert not torch.allclose(found, wanted)


def test_ends_stand_between_real_tokens_and_padding():
    assert flash.ends(VALID).tolist() == [0, 12, 12, 17, 24, 24, 36, 37, 48]


def request(pattern, **changed):
    settings = {
        "pattern": pattern, "batch": 8, "heads": 4, "n": 1000, "m": 1000, "device": "cuda",
        "dtype": torch.bfloat16, "learning": True, "masked": True, "biased": False,
        "dropout": 0.1, "lse": False, "aligned": True,
    }  # fmt: skip
    return Request(**(settings | changed))


@pytest.mark.parametrize("pattern", [Full(), Causal(), Sliding(257)], ids=str)
def test_aligned_rows_with_padding_go_to_it(pattern):
    assert plan(request(pattern)).kernel == "flash"
    for changed in (
        {"aligned": False},
        {"biased": True},
        {"lse": True},
        {"dtype": torch.float32},
        {"device": "cpu"},
        {"width": 20},
        {"width": 256},
        {"m": 1200},
    ):
        assert plan(request(pattern, **changed)).kernel != "flash", changed


def test_older_gpus_keep_the_other_kernels(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, kernel in (((9, 0), "flash"), ((8, 0), "flash"), ((7, 5), "triton")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda c=capability: c)
        plan.cache_clear()
        assert plan(request(Sliding(257))).kernel == kernel
    plan.cache_clear()


def test_without_padding_only_windows_that_drop_weights_do():
    bare = {"masked": False}
    assert plan(request(Full(), **bare)).kernel == "sdpa"
    assert plan(request(Sliding(257), **bare)).kernel == "flash"
    assert plan(request(Sliding(257), **bare, dropout=0.0)).kernel != "flash"
    assert plan(request(Strided(50))).kernel != "flash"


def test_asked_for_where_it_cannot_run_it_says_so():
    q, k, v = heads(2, 4, N, 8)
    with pytest.raises(Unsupported, match="half precision on a GPU"):
        attend(q, k, v, Sliding(3), kernel="flash")
