"""Rows of a batch under layouts of their own, interpreted on a CPU, against dense attention."""

import numpy as np
import pytest
import torch

import weft.mixers.bigbird
from kernels.programs import small_programs
from weft.kernels.block_sparse import triton as block_sparse
from weft.kernels.block_sparse.lists import lists_of_several
from weft.kernels.block_sparse.triton import attend_several
from weft.mixers import BigBird, Frame

BLOCK, ROWS, N, D = 32, 3, 89, 16
PICK = [2, 0, 1, 2]
LENGTHS = [89, 40, 3, 70]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(block_sparse, "TUNING", {BLOCK: small_programs(16, 32, 4, 1)})


def layouts():
    return np.random.default_rng(0).random((3, ROWS, ROWS)) < 0.5


def lists():
    seen = layouts()
    return lists_of_several(seen.nonzero(), seen.shape, BLOCK, torch.device("cpu"))


def allowed(seen, valid):
    """(b, 1, n, n): whose block is seen in the row's layout, and is real."""
    block = torch.arange(N) // BLOCK
    each = torch.as_tensor(seen)[PICK][:, block[:, None], block[None]]  # (b, n, n)
    return (each & valid[:, None, :])[:, None]


def compare(found, pick, groups=1):
    torch.manual_seed(0)
    q, k, v = (torch.randn(4, h, N, D).requires_grad_() for h in (2, 2 // groups, 2 // groups))
    valid = torch.arange(N) < torch.tensor(LENGTHS)[:, None]
    out = attend_several(q, k, v, valid, found, pick, scale=D**-0.5)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    scores = wide[0] @ wide[1].repeat_interleave(groups, 1).mT * D**-0.5
    seen = allowed(layouts(), valid)
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1).nan_to_num(0.0)
    truth = weights @ wide[2].repeat_interleave(groups, 1)
    upstream = torch.randn_like(out)
    found = torch.autograd.grad(out, (q, k, v), upstream)
    wanted = torch.autograd.grad(truth, wide, upstream.double())
    for one, other in zip((out, *found), (truth, *wanted), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2])
def test_each_row_has_its_own_layout(groups):
    compare(lists(), torch.tensor(PICK, dtype=torch.int32), groups)


@pytest.mark.parametrize("pick", [[0, 0, 1, 2], [2, 0, 1, 0]])
def test_another_layout_is_noticed(pick):
    with pytest.raises(AssertionError):
        compare(lists(), torch.tensor(pick, dtype=torch.int32))


@pytest.mark.parametrize("side", ["start", "shares"])
def test_a_block_forgotten_is_noticed(side):
    """Forward and gradients read lists of their own: each must be right."""
    found = lists()
    if side == "start":
        found.start[2, 1:] -= 1
        found.middle[2, 1:] -= 1
    else:
        found.shares[3][2 * ROWS :] -= 1
    with pytest.raises(AssertionError):
        compare(found, torch.tensor(PICK, dtype=torch.int32))


@pytest.mark.parametrize("random", [0, 2])
def test_bigbird_by_layouts_equals_its_reference(monkeypatch, random):
    monkeypatch.setattr(weft.mixers.bigbird, "takes_several", lambda q, block: True)
    torch.manual_seed(1)
    frame = Frame(dim=32, heads=2, length=128)
    config = BigBird(block=BLOCK, random=random)
    mixer, twin = config.build(frame), config.build(frame).double()
    twin.load_state_dict(mixer.state_dict())
    lengths = torch.tensor([120, 17, 1, 64])
    x, valid = torch.randn(4, 120, 32, requires_grad=True), torch.arange(120) < lengths[:, None]
    wide = x.detach().double().requires_grad_()
    y, truth = mixer(x, valid=valid)[valid], twin.reference(wide, valid)[valid]
    torch.testing.assert_close(y.double(), truth, rtol=1e-4, atol=1e-5)
    upstream = torch.randn_like(truth)
    found = torch.autograd.grad(y, x, upstream.float())[0]
    wanted = torch.autograd.grad(truth, wide, upstream)[0]
    torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=1e-4)
