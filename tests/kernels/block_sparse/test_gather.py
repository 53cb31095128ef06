"""The gather kernel: groups of blocks, dropout, and memory that follows the window, not n²."""

import dataclasses
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.oracle import assert_same, gradients, heads, oracle
from patterns.expressions import cases, few
from weft.kernels.attend.api import attend
from weft.kernels.attend.masking import make_labels
from weft.kernels.block_sparse import gather
from weft.kernels.block_sparse.gather import gather_attention
from weft.kernels.block_sparse.grouping import grouping
from weft.patterns import (
    BlockNeighbours,
    Causal,
    Columns,
    Dilated,
    Global,
    Order,
    RandomBlocks,
    SameBlock,
    Sink,
    Sliding,
    Strided,
    Window2d,
)
from weft.patterns.lower import Part, lower
from weft.testing.patterns import truth

CPU = torch.device("cpu")


def natural(pattern, n, m):
    return Part(pattern, Order(n, m - n), Order(m), m)


def read_by(part, block, n, m):
    """(n, m): how often each query reads each key in the groups of a part in natural order."""
    read = torch.zeros(n + block, m + block, dtype=torch.long)
    within = torch.arange(block)
    for group in grouping(part, block, CPU).groups:
        for at, u in enumerate(group.rows.tolist()):
            i = u * block + within
            j = (group.cols[at][:, None] * block + within).flatten()
            mask = torch.ones(block, len(j), dtype=torch.bool)
            if group.mask is not None:
                mask = group.mask[at if len(group.mask) > 1 else 0]
            if group.dead is not None:
                dead = group.dead[at if len(group.dead) > 1 else 0]
                mask = mask & ~dead[:, None]
            rows, cols = mask.nonzero(as_tuple=True)
            read.index_put_((i[rows], j[cols]), torch.ones_like(rows), accumulate=True)
    assert not read[:n, m:].any(), "keys beyond the end are read"
    return read[:n, :m]


@given(case=cases(longest=120), block=st.sampled_from([1, 3, 8, 32, 128]))
@few
def test_groups_read_the_pattern_once(case, block):
    pattern, n, m = case
    read = read_by(natural(pattern, n, m), block, n, m)
    assert read.tolist() == truth(pattern, n, m).astype(int).tolist()


def test_rows_that_look_alike_share_a_mask():
    part = natural(Causal() & Sliding(40), 1000, 1000)
    groups = grouping(part, 16, CPU).groups
    shared = [group for group in groups if group.mask is not None and len(group.mask) == 1]
    assert max(len(group.rows) for group in shared) > 50
    assert sum(len(group.rows) for group in groups) == 63
    # Not a matter of distance alone: each row of blocks has a mask of its own.
    groups = grouping(natural(Causal() & SameBlock(24), 1000, 1000), 16, CPU).groups
    assert all(len(g.mask) == len(g.rows) for g in groups if g.mask is not None)


def test_selected_keys_stretch_distances():
    """Under a selection of nine keys in ten, equal offsets of blocks are not equal distances."""
    pattern, n = Columns(10, 9) & Sliding(70), 700
    inputs = heads(1, 2, n, 8)
    lowered = lower(pattern, n, n, 16)
    assert type(lowered.parts[0].cols) is not Order
    chosen = lowered.parts[0].cols.positions()
    taken = [inputs[0], *(x[:, :, chosen] for x in inputs[1:])]
    found = gather_attention(*taken, lowered.parts[0], block=16, scale=8**-0.5)
    assert_same(found, oracle(*inputs, pattern))


@pytest.mark.parametrize("size", [1, 20_000])
@pytest.mark.parametrize("padded", [False, True])
def test_pieces_of_any_size(size, padded):
    """Row by row or a few at a time: bands that overlap in memory, and rows that do not follow."""
    for pattern in (Causal() & Sliding(30), Sliding(9), SameBlock(24) | Sink(3), ~Sliding(40)):
        inputs = [x.requires_grad_() for x in heads(2, 3, 150, 8)]
        valid = torch.rand(2, 150) < 0.7 if padded else None
        with mock.patch.object(gather, "_PIECE", size):
            part, labels = natural(pattern, 150, 150), make_labels(valid, None, 150)
            found = gather_attention(*inputs, part, block=16, scale=8**-0.5, labels=labels)
            ours = gradients(found, inputs)
        expected = oracle(*inputs, pattern, valid=valid)
        assert_same(found, expected)
        for one, other in zip(ours, gradients(expected, inputs), strict=True):
            assert_same([one], [other])


def test_a_pattern_that_reads_nothing():
    q, k, v = (x.requires_grad_() for x in heads(1, 2, 50, 8))
    part = natural(Causal() & ~Causal(), 50, 50)
    out, lse = gather_attention(q, k, v, part, block=16, scale=0.3)
    assert (out == 0).all()
    assert (lse == -torch.inf).all()
    out.sum().backward()
    assert q.grad.isfinite().all()


def wrong_mask(part, block, device):
    """One visible pair of one group flipped."""
    made = grouping(part, block, device)
    groups = list(made.groups)
    at = next(a for a, group in enumerate(groups) if group.mask is not None)
    mask = groups[at].mask.clone()
    mask[0, -1, 0] ^= True
    groups[at] = dataclasses.replace(groups[at], mask=mask)
    return dataclasses.replace(made, groups=tuple(groups))


def wrong_block(part, block, device):
    """One group reads a neighbour of one of its blocks."""
    made = grouping(part, block, device)
    first, *rest = made.groups
    cols = first.cols.clone()
    cols[0, 0] = (cols[0, 0] + 1) % part.layout(block).columns
    moved = dataclasses.replace(first, cols=cols, shift=None)
    return dataclasses.replace(made, groups=(moved, *rest))


@pytest.mark.parametrize("twin", [grouping, wrong_mask, wrong_block])
@pytest.mark.parametrize("pattern", [Causal() & Sliding(20), Sliding(9) | Sink(3), SameBlock(24)])
def test_groups_have_teeth(twin, pattern):
    inputs = heads(1, 2, 100, 8)
    with mock.patch.object(gather, "grouping", twin):
        found = gather_attention(*inputs, natural(pattern, 100, 100), block=16, scale=8**-0.5)
    expected = oracle(*inputs, pattern)
    if twin is grouping:
        assert_same(found, expected)
    else:
        with pytest.raises(AssertionError):
            assert_same(found, expected)


def test_dropout_keeps_the_mean_and_takes_its_share():
    n, w, p = 1500, 40, 0.4
    q, k, v = heads(1, 1, n, 4)
    q, v = q * 0, torch.ones_like(v)
    pattern = Causal() & Sliding(w)
    out = attend(q, k, v, pattern, kernel="gather", dropout=p)[0, 0, w:]
    # w equal weights, each kept with probability 1 − p and divided by it.
    assert abs(out.mean() - 1.0) < 0.01
    assert abs(out[:, 0].var() - p / (1 - p) / w) < 0.2 * p / (1 - p) / w
    assert (attend(q, k, v, pattern, kernel="gather", dropout=p)[0, 0, w:] != out).any()
    assert attend(q, k, v, pattern, kernel="gather")[0, 0].allclose(torch.ones(n, 4).double())


def test_dropout_leaves_the_log_sum_exp_alone():
    inputs = heads(1, 2, 200, 8)
    _, lse = attend(*inputs, Sliding(9), kernel="gather", dropout=0.5, return_lse=True)
    assert_same([lse], oracle(*inputs, Sliding(9))[1:])


class Largest(TorchDispatchMode):
    """Remembers the most elements that any operation returned."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else (result,):
            if isinstance(each, torch.Tensor):
                self.numel = max(self.numel, each.untyped_storage().size() // each.itemsize)
        return result


def largest(pattern, n, kernel="gather", **options):
    inputs = [x.requires_grad_() for x in heads(1, 1, n, 8, dtype=torch.float32)]
    grouping.cache_clear()
    with Largest() as seen:
        attend(*inputs, pattern, kernel=kernel, **options).sum().backward()
    return seen.numel


@pytest.mark.parametrize(
    "pattern",
    [
        Causal() & Sliding(100),
        Sliding(100) | Global(first=3),
        Causal() & (Sliding(64) | Strided(64)),
        Causal() & (SameBlock(64) | Columns(512, 2)),
        Dilated(10, 8),
        BlockNeighbours(32) | RandomBlocks(1, 64, 3),
        Window2d(64, 3),
    ],
    ids=str,
)
def test_no_operation_sees_all_pairs(pattern):
    n = 4096
    # Twice the length, about twice the memory; dense attention would take four times.
    assert largest(pattern, 2 * n) < 3 * largest(pattern, n)
    assert largest(pattern, n) < n * n / 4
    padded = {"valid": torch.ones(1, n, dtype=torch.bool)}
    assert largest(pattern, n, **padded) < n * n / 4


def test_memory_has_teeth():
    assert largest(Sliding(100), 1024, kernel="dense") >= 1024**2


@pytest.mark.parametrize(("length", "block"), [(5, 16), (16, 16), (17, 32), (100, 128), (900, 128)])
def test_a_short_sequence_takes_a_small_block(length, block):
    """Folding 1,024 tokens by 128 leaves sequences of 8: a block of 128 would be mostly padding."""
    part = Part(Causal(), Order(length), Order(length), length, fold=4)
    assert part.fit(128) == block
