"""Padded rows as contiguous sequences; torch's kernel itself runs on a GPU only.

Here a plain loop over sequences stands in for it, so that edges, windows and layouts are checked.
"""

import pytest
import torch
from oracle import heads, oracle

from weft.errors import Unsupported
from weft.kernels.attend.api import Request, attend, choose
from weft.kernels.attend.planner import choose_eager
from weft.kernels.dense import flash
from weft.mixers.base import under_pattern
from weft.mixers.full import FullAttention
from weft.mixers.longformer import Longformer
from weft.mixers.sliding_window import SlidingWindow
from weft.patterns import Causal, Full, Sliding, Strided
from weft.testing.contract import checks_for, exempt

N, LENGTHS = 12, (12, 5, 0, 1)
VALID = torch.arange(N) < torch.tensor(LENGTHS)[:, None]
PATTERNS = [Full(), Causal(), Sliding(1), Sliding(4), Sliding(50)]


def loop(q, k, v, edges, longest, reach, causal, *, scale, dropout):
    """What the kernel computes, one sequence after another."""
    assert dropout == 0.0
    if edges is None:
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
        edges = torch.arange(0, len(q) + 1, longest, dtype=torch.int32)
    assert edges.dtype == torch.int32
    assert edges.diff().max() <= longest
    parts = []
    for size, part in zip(
        edges.diff().tolist(), zip(*cut(q, k, v, edges), strict=True), strict=True
    ):
        q_own, k_own, v_own = part  # (l, h, d)
        apart = torch.arange(size)[None] - torch.arange(size)[:, None]  # (l, l): j − i
        seen = apart <= (0 if causal else longest if reach is None else reach)
        seen &= apart >= (-longest if reach is None else -reach)
        scores = torch.einsum("ihd,jhd->hij", q_own, k_own) * scale
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        parts.append(torch.einsum("hij,jhd->ihd", weights, v_own))
    return torch.cat(parts)


def cut(q, k, v, edges):
    return [x.split(edges.diff().tolist()) for x in (q, k, v)]


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
    """Padding begins one token later, where there is any."""
    found = flash_ends(valid)
    found[1::2] = torch.minimum(found[1::2] + 1, found[2::2])
    return found


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


@pytest.fixture
def everywhere(monkeypatch, _looped):
    """The kernel on a CPU and in fp64: how mixers come to it is checked like on a GPU."""
    refusal = flash.refusal

    def refusal_here(pattern, *, device, dtype, width, **request):
        return refusal(pattern, device="cuda", dtype=torch.bfloat16, width=64, **request)

    calls = []

    def counted(*args, **options):
        calls.append(args[0].shape)
        return loop(*args, **options)

    monkeypatch.setattr(flash, "refusal", refusal_here)
    monkeypatch.setattr(flash, "sequences", counted)
    choose_eager.cache_clear()
    yield calls
    choose_eager.cache_clear()


@pytest.mark.parametrize(
    "config",
    [
        FullAttention(),
        SlidingWindow(window=5),
        Longformer(window=5, global_first=0, global_projections=False),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["reference", "gradients", "padding", "cross", "first_rows"])
def test_mixers_keep_their_contract_on_it(config, name, everywhere):
    checks = dict(checks_for(config))
    if name not in checks:
        assert name in exempt(config)
        return
    checks[name](**({"lengths": (1, 7, 20)} if name == "reference" else {}))
    assert everywhere or name == "cross", "the kernel was not asked"


def test_a_context_taken_for_the_own_sequence_shows(monkeypatch, everywhere):
    """Queries behind the end of a shorter context would read its padding."""
    plainly = under_pattern.attend

    def aligned(*args, **settings):
        return plainly(*args, **(settings | {"aligned": True}))

    monkeypatch.setattr(under_pattern, "attend", aligned)
    with pytest.raises(AssertionError, match="context padded"):
        dict(checks_for(FullAttention()))["cross"]()


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
    assert choose(request(pattern)).kernel == "flash"
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
        assert choose(request(pattern, **changed)).kernel != "flash", changed


def test_older_gpus_keep_the_other_kernels(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, kernel in (((9, 0), "flash"), ((8, 0), "flash"), ((7, 5), "triton")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda c=capability: c)
        choose_eager.cache_clear()
        assert choose(request(Sliding(257))).kernel == kernel
    monkeypatch.setattr(torch.version, "hip", "6.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 4))
    choose_eager.cache_clear()
    assert choose(request(Sliding(257))).kernel == "triton"
    choose_eager.cache_clear()


def test_without_padding_only_windows_that_drop_weights_do():
    bare = {"masked": False}
    assert choose(request(Full(), **bare)).kernel == "sdpa"
    dropping = choose(request(Sliding(257), **bare))
    assert (dropping.kernel, dropping.reason) == ("flash", "a window that drops weights")
    assert "padding" in choose(request(Sliding(257))).reason
    assert choose(request(Sliding(257), **bare, dropout=0.0)).kernel != "flash"
    assert choose(request(Sliding(257), **bare, width=32)).kernel == "flash"
    assert choose(request(Sliding(257), **bare, width=16)).kernel == "triton"
    assert choose(request(Sliding(257), width=16)).kernel == "flash"
    assert choose(request(Strided(50))).kernel != "flash"


def test_asked_for_where_it_cannot_run_it_says_so():
    q, k, v = heads(2, 4, N, 8)
    with pytest.raises(Unsupported, match="the flash kernel runs on a GPU; got cpu"):
        attend(q, k, v, Sliding(3), kernel="flash")
