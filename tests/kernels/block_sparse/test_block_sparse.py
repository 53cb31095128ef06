"""Our Triton kernels, interpreted on a CPU: values and gradients against fp64 truth."""

import dataclasses

import numpy as np
import pytest
import torch

import weft.kernels.block_sparse.lists as block_sparse_lists
import weft.kernels.block_sparse.triton as block_sparse
from kernels.programs import small_programs
from weft.errors import Unsupported
from weft.kernels.attend.api import attend
from weft.kernels.attend.masking import make_labels
from weft.patterns import (
    BlockNeighbours,
    Causal,
    Columns,
    Full,
    Keys,
    Order,
    RandomBlocks,
    SameBlock,
    Sliding,
    Strided,
)
from weft.patterns.derive import mask
from weft.patterns.lower import Lowered, Part, lower

D, HEADS = 16, 2
SMALL = {16: small_programs(16, 16, 4, 1), 32: small_programs(16, 32, 4, 1, unroll=2)}


@pytest.fixture(autouse=True)
def _small_blocks_many_shares(monkeypatch):
    monkeypatch.setattr(block_sparse, "TUNING", SMALL)
    monkeypatch.setattr(block_sparse_lists, "_LEAST_SHARE", 1)
    monkeypatch.setattr(block_sparse_lists, "_PROCESSORS", 1000)
    lists = block_sparse_lists.lists_of
    lists.cache_clear()
    yield
    lists.cache_clear()


def natural(pattern, n, m):
    return Lowered((Part(pattern, Order(n, m - n), Order(m), m),))


def inputs(n, m, key_heads, query_heads=HEADS):
    def heads(count, length):
        return torch.randn(2, length, count, D).transpose(1, 2).requires_grad_()

    return heads(query_heads, n), heads(key_heads, m), heads(key_heads, m)


def truth(q, k, v, seen):
    """softmax(q·kᵀ / √d) v under a mask, pair by pair, in fp64."""
    q, k, v = (x.double() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = (torch.einsum("bhnd,bhmd->bhnm", q, k) * D**-0.5).masked_fill(~seen, -1e30)
    weights = scores.softmax(-1) * seen
    lse = torch.where(seen.any(-1), scores.logsumexp(-1), -torch.inf)
    return torch.einsum("bhnm,bhmd->bhnd", weights, v), lse


def check(pattern, n, m, lowered, block, key_heads=1, query_heads=HEADS, labels=None):
    q, k, v = inputs(n, m, key_heads, query_heads)
    out, lse = block_sparse.block_sparse_attention(
        q, k, v, lowered, block=block, scale=D**-0.5, labels=labels
    )
    seen = mask(pattern, n, m)[None].expand(2, query_heads, n, m)
    if labels is not None:
        seen = seen & labels.dense()[:, None]
    want, want_lse = truth(q, k, v, seen)
    alive = seen.any(-1)
    assert torch.equal(lse.isfinite(), alive)
    torch.testing.assert_close(out.double(), want, rtol=0, atol=2e-6)
    torch.testing.assert_close(lse.double()[alive], want_lse[alive], rtol=0, atol=2e-6)
    pull, pull_lse = torch.randn_like(out), torch.randn_like(lse)
    mine = (out * pull).sum() + (lse[alive] * pull_lse[alive]).sum()
    theirs = (want * pull).sum() + (want_lse[alive] * pull_lse[alive]).sum()
    wanted = torch.autograd.grad(theirs, (q, k, v))
    for got, expected in zip(torch.autograd.grad(mine, (q, k, v)), wanted, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("pattern", "n", "m", "block"),
    [
        (Sliding(9) | Keys(first=8), 64, 64, 32),
        (Causal() & Sliding(20), 20, 50, 16),
        (BlockNeighbours(16) | RandomBlocks(1, block=16), 48, 48, 16),
        (~Sliding(20) & Causal(), 48, 48, 16),
        (Full(), 40, 70, 16),
        (Causal(), 70, 70, 32),
    ],
    ids=str,
)
def test_values_and_gradients(pattern, n, m, block):
    check(pattern, n, m, natural(pattern, n, m), block)


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        (Causal() & (Sliding(8) | Strided(8)), 2),
        (Causal() & (SameBlock(16) | Columns(16, 4)), 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("labelled", [False, True])
def test_parts_continue_one_softmax(pattern, parts, labelled):
    n = 64
    lowered = lower(pattern, n, n, 16)
    assert len(lowered.parts) == parts
    assert all(block_sparse.can_run(part, n, n) for part in lowered.parts)
    valid = torch.rand(2, n) > 0.3
    documents = (torch.arange(n) * 3 // n).expand(2, n)
    check(pattern, n, n, lowered, 16, labels=make_labels(valid, documents, n) if labelled else None)


def test_grouped_keys_and_one_query_head_per_key_head():
    pattern = Causal() & Sliding(12)
    for heads in ((2, 4), (2, 2)):
        check(pattern, 33, 33, natural(pattern, 33, 33), 16, *heads)


def test_rows_instead_take_their_own_gradient_and_pass_none_on():
    n, pattern = 48, Sliding(7)
    q, k, v = inputs(n, n, 2)
    rows = torch.tensor([0, 1, 40])
    own = torch.randn(2, HEADS, 3, D, requires_grad=True)
    out, _ = block_sparse.block_sparse_attention(
        q, k, v, natural(pattern, n, n), block=16, scale=D**-0.5, instead=(rows, own)
    )
    want, _ = truth(q, k, v, mask(pattern, n)[None].expand(2, HEADS, n, n))
    want = want.index_copy(2, rows, own.double())
    torch.testing.assert_close(out.double(), want, rtol=0, atol=2e-6)
    pull = torch.randn_like(out)
    wanted = torch.autograd.grad((want * pull).sum(), (q, k, v, own))
    for got, expected in zip(
        torch.autograd.grad((out * pull).sum(), (q, k, v, own)), wanted, strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_equal_tiles_are_stored_once():
    part = natural(Causal() & Sliding(20), 512, 512).parts[0]
    lists = block_sparse_lists.lists_of(part, 32, 4, torch.device("cpu"))
    assert len(lists.cols) > 2 * len(lists.tiles)
    assert len(lists.tiles) == 2


def test_shares_cover_every_entry_of_every_column_once():
    found = natural(Sliding(30) | Keys(first=16), 256, 256).parts[0].layout(16)
    (column, first, middle, last, place), shared = block_sparse_lists._shares(found, found.full, 8)
    counts = np.bincount(found.cols, minlength=found.columns)
    begin = np.cumsum(counts) - counts
    covered = np.zeros(len(found.cols), dtype=int)
    for c, a, b, z in zip(column, first, middle, last, strict=True):
        assert begin[c] <= a <= b <= z <= begin[c] + counts[c]
        covered[a:z] += 1
    assert (covered == 1).all()
    assert set(shared) == {c for c in column if (column == c).sum() > 1}
    assert (place >= 0).sum() == sum((column == c).sum() for c in shared)


@pytest.mark.parametrize("broken", ["tile", "column", "row"])
def test_a_wrong_list_is_caught(broken, monkeypatch):
    lists = block_sparse_lists.lists_of

    def spoiled(*args):
        good = lists(*args)
        if broken == "tile":
            return dataclasses.replace(good, tiles=torch.log(good.tiles.isinf().float()))
        if broken == "column":
            return dataclasses.replace(good, cols=good.cols.flip(0))
        return dataclasses.replace(good, back_rows=good.back_rows.flip(0))

    monkeypatch.setattr(block_sparse_lists, "lists_of", spoiled)
    pattern = Sliding(9) | Keys(first=8)
    with pytest.raises(AssertionError):
        check(pattern, 48, 48, natural(pattern, 48, 48), 16)


@pytest.mark.parametrize("pattern", [Sliding(9), Causal() & (Sliding(8) | Strided(8))], ids=str)
def test_a_bias_is_refused_not_ignored(pattern):
    q, k, v = inputs(64, 64, 2)
    with pytest.raises(Unsupported, match="takes no bias"):
        attend(q, k, v, pattern, kernel="triton", bias=lambda head, i, j: -(i - j).abs())
