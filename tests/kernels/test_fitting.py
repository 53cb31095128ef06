"""Kernels that ask for more memory than a GPU has are started by smaller programs."""

import pytest
import torch
from triton.runtime.errors import OutOfResources

import weft
from kernels.programs import small_programs
from weft.errors import WeftError
from weft.kernels import block_sparse, block_sparse_triton, fitting, indexed, indexed_triton
from weft.kernels.attend import attend
from weft.kernels.fitting import Program


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch):
    monkeypatch.setattr(fitting, "_FITTING", {})


class Refusing:
    """A kernel on a processor that lends memory for few keys at a time."""

    def __init__(self, kernel, most):
        self.kernel, self.most, self.asked, self.__name__ = kernel, most, [], kernel.__name__

    def __getitem__(self, grid):
        def launch(*args, **settings):
            held = settings["STEP"] * settings["num_stages"] * settings.get("UNROLL", 1)
            self.asked.append(held)
            if held > self.most:
                raise OutOfResources(held, self.most, "shared memory")
            self.kernel[grid](*args, **settings)

        return launch


def heads(n=64, d=16):
    torch.manual_seed(0)
    return [torch.randn(1, 1, n, d, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("name", ["forward", "query_gradient", "key_gradient"])
def test_block_sparse_kernels_go_on_with_smaller_steps(name, monkeypatch):
    programs = small_programs(32, 32, 4, 2, unroll=2)
    monkeypatch.setattr(block_sparse, "TUNING", {128: programs, 64: programs})
    kernel = Refusing(getattr(block_sparse_triton, f"{name}_kernel"), most=32)
    monkeypatch.setattr(block_sparse_triton, kernel.__name__, kernel)
    for turn in range(2):
        q, k, v = heads()
        out = attend(q, k, v, weft.Sliding(20), kernel="triton")
        wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
        truth = attend(*wide, weft.Sliding(20), kernel="dense")
        torch.testing.assert_close(out.double(), truth, rtol=1e-4, atol=1e-5)
        upstream = torch.randn_like(out)
        found = torch.autograd.grad(out, (q, k, v), upstream)
        for one, other in zip(
            found, torch.autograd.grad(truth, wide, upstream.double()), strict=True
        ):
            torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)
        # The second time it knows what fits.
        assert kernel.asked[3 * turn :] == [128, 64, 32][3 * turn :] + [32] * turn


def test_what_fits_nowhere_is_said(monkeypatch):
    programs = small_programs(32, 32, 4, 2, unroll=2)
    monkeypatch.setattr(block_sparse, "TUNING", {128: programs, 64: programs})
    kernel = Refusing(block_sparse_triton.forward_kernel, most=8)
    monkeypatch.setattr(block_sparse_triton, "forward_kernel", kernel)
    with pytest.raises(WeftError, match=r"too little memory for .*forward.* kernel='gather'"):
        attend(*heads(), weft.Sliding(20), kernel="triton")
    assert kernel.asked == [128, 64, 32, 16]


def test_programs_shrink_to_the_least_that_a_product_takes():
    program, steps = Program(128, 64, 4, 3, unroll=2), []
    while program is not None:
        steps.append((program.step, program.stages, program.unroll))
        program = program.smaller()
    assert steps == [(64, 3, 2), (64, 3, 1), (32, 3, 1), (16, 3, 1), (16, 1, 1)]


def test_kernels_that_gather_shrink_too(monkeypatch):
    monkeypatch.setitem(indexed.FORWARD, 16, Program(64, 32, 4, 2))
    kernel = Refusing(indexed_triton.forward_kernel, most=32)
    monkeypatch.setattr(indexed_triton, "forward_kernel", kernel)
    torch.manual_seed(0)
    x, v = (torch.randn(1, 2, 40, 16) for _ in range(2))
    buckets = torch.randint(0, 3, (1, 2, 1, 40))
    runs = indexed.runs_of_order(buckets, 3, torch.tensor([40]), chunk=16, lookback=1)
    small = indexed.attend_runs(x, v, runs, scale=0.25)
    assert kernel.asked == [64, 32]
    monkeypatch.setattr(indexed_triton, "forward_kernel", kernel.kernel)
    torch.testing.assert_close(small, indexed.attend_runs(x, v, runs, scale=0.25))
