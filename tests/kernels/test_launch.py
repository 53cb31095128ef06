"""Kernels that ask for more memory than a GPU has are started by smaller programs."""

import pytest
import torch
from triton.runtime.errors import OutOfResources

import weft
from kernels.programs import small_programs
from weft.errors import WeftError
from weft.kernels import launch
from weft.kernels.attend.api import attend
from weft.kernels.block_sparse import kernels as block_sparse_kernels
from weft.kernels.block_sparse import triton as block_sparse
from weft.kernels.launch import Program
from weft.kernels.lsh import kernels as lsh_kernels
from weft.kernels.lsh import triton as lsh_triton


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch):
    monkeypatch.setattr(launch, "_FITTING", {})


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
    kernel = Refusing(getattr(block_sparse_kernels, f"{name}_kernel"), most=32)
    monkeypatch.setattr(block_sparse_kernels, kernel.__name__, kernel)
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
    kernel = Refusing(block_sparse_kernels.forward_kernel, most=8)
    monkeypatch.setattr(block_sparse_kernels, "forward_kernel", kernel)
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
    monkeypatch.setitem(lsh_triton.FORWARD, 16, Program(64, 32, 4, 2))
    kernel = Refusing(lsh_kernels.forward_kernel, most=32)
    monkeypatch.setattr(lsh_kernels, "forward_kernel", kernel)
    torch.manual_seed(0)
    x, v = (torch.randn(1, 2, 40, 16) for _ in range(2))
    buckets = torch.randint(0, 3, (1, 2, 1, 40))
    runs = lsh_triton.runs_of_order(buckets, 3, torch.tensor([40]), chunk=16, lookback=1)
    small = lsh_triton.attend_runs(x, v, runs, scale=0.25)
    assert kernel.asked == [64, 32]
    monkeypatch.setattr(lsh_kernels, "forward_kernel", kernel.kernel)
    torch.testing.assert_close(small, lsh_triton.attend_runs(x, v, runs, scale=0.25))


@pytest.mark.parametrize("options", [{}, {"dropout": 0.1}, {"valid": True}], ids=str)
def test_each_kernel_gets_its_arguments_and_no_others(monkeypatch, options):
    """By name: interpreted kernels ignore what they do not know, compiled ones refuse it."""
    names = ("forward_kernel", "query_gradient_kernel", "key_gradient_kernel")
    wanted = {name: set(getattr(block_sparse_kernels, name).arg_names) for name in names}
    given = {}
    for name in names:

        class Noted:
            def __getitem__(self, grid, name=name):
                assert all(isinstance(size, int) and size > 0 for size in grid)
                return lambda **arguments: given.__setitem__(name, set(arguments))

        monkeypatch.setattr(block_sparse_kernels, name, Noted())
    q = torch.randn(2, 2, 256, 16, requires_grad=True)
    if "valid" in options:
        options = {"valid": torch.ones(2, 256, dtype=torch.bool)}
    pattern = weft.Sliding(20) | weft.Keys(first=3)
    attend(q, q, q, pattern, kernel="triton", **options).sum().backward()
    for name in names:
        assert given[name] == wanted[name] | {"num_warps", "num_stages"}
