"""FlexAttention from our layouts: the lists of blocks are right, and so are values on a CPU."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from kernels.oracle import alibi, assert_same, heads, oracle
from patterns.expressions import cases, few
from weft.kernels.attend.api import attend
from weft.kernels.block_sparse import flex
from weft.kernels.block_sparse.flex import _block_mask, _lists, _seen
from weft.patterns import (
    BlockNeighbours,
    Causal,
    Columns,
    Dilated,
    Global,
    Keys,
    Order,
    PerHead,
    RandomBlocks,
    SameBlock,
    Sink,
    Sliding,
    Strided,
    Window2d,
    select,
)
from weft.patterns.lower import Part

CPU = torch.device("cpu")
PATTERNS = [
    Causal() & Sliding(40),
    Sliding(40) | Global(first=3, last=2),
    Causal() & (SameBlock(32) | Columns(32, 3)),
    Dilated(4, 5) | Sink(2),
    Causal() & (BlockNeighbours(32, 1, 0) | Sink(32) | RandomBlocks(2, 32, 3, past=True)),
    Window2d(32, 3),
]


def dense(counts, lists, columns):
    """(rows, columns) booleans from counts (1, 1, rows) and lists (1, 1, rows, most)."""
    found = np.zeros((counts.shape[-1], columns), dtype=bool)
    for u, count in enumerate(np.asarray(counts)[0, 0]):
        own = np.asarray(lists)[0, 0, u, :count]
        assert (np.diff(own) > 0).all(), "the kernel walks a row of blocks in order"
        found[u, own] = True
    return found


def check_lists(tensors, some, every):
    """Partial and full blocks, by row and by column, against the layout."""
    rows, columns = some.shape
    for lists, partial, full in (
        (tensors[:4], some & ~every, every),
        (tensors[4:], (some & ~every).T, every.T),
    ):
        assert lists[1].shape == lists[3].shape, "both lists are stepped through alike"
        assert all(x.dtype in (torch.int32, np.int32) for x in lists)
        wide = columns if len(partial) == rows and partial.shape[1] == columns else rows
        np.testing.assert_array_equal(dense(lists[0], lists[1], wide), partial)
        np.testing.assert_array_equal(dense(lists[2], lists[3], wide), full)


@given(case=cases(), block=st.sampled_from([4, 16, 64, 128]), masked=st.booleans())
@few
def test_lists_are_the_layout(case, block, masked):
    pattern, n, m = case
    part = Part(pattern, Order(n, m - n), Order(m), m)
    lists = _lists(part, block, CPU, masked)
    some, every = part.layout(block).dense()
    # A mask from outside may hide any key: then no block is full.
    check_lists(lists, some, every & (not masked))


def test_the_block_mask_holds_the_lists_and_the_predicate():
    pattern = Sliding(300) | Global(first=2)
    part = Part(pattern, Order(1000), Order(1000), 1000)
    lists = _lists(part, 128, CPU, False)
    mask = _block_mask(lists, (1000, 1000), 128, _seen(part, CPU), None)
    assert mask.shape == (1, 1, 1000, 1000)
    for name, at in (("kv_indices", 1), ("full_kv_indices", 3), ("q_indices", 5)):
        assert getattr(mask, name) is lists[at]
    zero = torch.tensor(0)
    for i, j in ((5, 300), (5, 305), (999, 0), (700, 401), (700, 400)):
        seen = mask.mask_mod(zero, zero, torch.tensor(i), torch.tensor(j))
        assert bool(seen) == (abs(i - j) < 300 or min(i, j) < 2)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_values_on_a_cpu(pattern):
    inputs = heads(1, 2, 256, 8, 1)
    found = attend(*inputs, pattern, kernel="flex", return_lse=True)
    assert_same(found, oracle(*inputs, pattern))


def test_padding_documents_and_bias():
    pattern = PerHead(Sliding(9), Strided(9))
    options = {
        "valid": torch.rand(2, 200) < 0.8,
        "segments": (torch.arange(200) // 70).expand(2, -1),
        "bias": alibi,
    }
    inputs = heads(2, 4, 200, 8, 2)
    found = attend(*inputs, pattern, kernel="flex", return_lse=True, **options)
    assert_same(found, oracle(*inputs, pattern, **options))


def test_a_decoder_continues():
    pattern = Causal() & (Sliding(20) | Sink(3))
    segments = (torch.arange(200) // 70).expand(2, -1)
    inputs = heads(2, 2, 37, 8, 1, 200)
    found = attend(*inputs, pattern, kernel="flex", segments=segments, return_lse=True)
    assert_same(found, oracle(*inputs, pattern, segments=segments))


def test_selected_keys_know_their_positions():
    inputs = heads(1, 2, 100, 8)
    keys = select([3, 50, 51, 90])
    part = Part(Causal() & Sliding(30), Order(100), keys, 100)
    taken = [inputs[0], *(x[:, :, keys.positions()] for x in inputs[1:])]
    found = flex.flex_part(*taken, part, block=128, scale=8**-0.5)
    chosen = Keys(at=(3, 50, 51, 90))
    assert_same(found, oracle(*inputs, part.pattern & chosen))


@pytest.mark.long
@pytest.mark.parametrize("block", [64, 128])
def test_compiled_on_a_cpu(monkeypatch, block):
    """The compiled kernel visits the listed blocks alone, whatever the strides of its inputs. On a
    CPU it returns no log-sum-exp and wants lists as wide as the keys."""
    compiled = torch.compile(flex_attention, fullgraph=True)

    def run(q, k, v, mask, score, scale):
        lists = (mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices)
        missing = -(-k.shape[2] // block) - mask.kv_indices.shape[-1]
        wide = [F.pad(x, (0, missing)) if x.dim() == 4 else x for x in lists]
        sizes = {"BLOCK_SIZE": mask.BLOCK_SIZE, "seq_lengths": mask.seq_lengths}
        made = BlockMask.from_kv_blocks(*wide, mask_mod=mask.mask_mod, **sizes)
        return compiled(q, k, v, block_mask=made, scale=scale), q[..., 0]

    monkeypatch.setattr(flex, "_call", lambda key, device: run)
    for pattern in (
        Causal() & Sliding(70),
        Sliding(70) | Global(first=2),
        BlockNeighbours(32) | RandomBlocks(2, 32, 3),
    ):
        wide = torch.randn(2, 500, 3, 4, 16)
        inputs = [wide[:, :, a].transpose(1, 2) for a in range(3)]
        assert not any(x.is_contiguous() for x in inputs)
        part = Part(pattern, Order(500), Order(500), 500)
        found, _ = flex.flex_part(*inputs, part, block=block, scale=0.25)
        assert_same([found], oracle(*inputs, pattern)[:1], tolerance=1e-5)
