"""The kernels that solve with landmarks compiled for an H200, which needs none: they fit it."""

import json
import os
import subprocess
import sys

import pytest

from weft.kernels.nystrom.solve import MOST, PRECISION, WARPS, WIDTHS

SHARED = 227 * 1024  # bytes of one program on an H200


def shared_memory():
    """Bytes that each kernel takes, at its largest."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from weft.kernels.nystrom import solve_kernels as kernels

    constants = {"R": MOST, "D": WIDTHS[-1], "EXACT": PRECISION}
    given = {"z_ptr": "*fp32", "counts_ptr": "*i32", "scale": "fp32", "natural_scale": "fp32"}
    given |= dict.fromkeys(constants, "constexpr")
    found = {}
    for kernel in (kernels.solve_kernel, kernels.solve_back_kernel):
        names = kernel.arg_names
        types = {name: given.get(name, "*bf16" if "_ptr" in name else "i32") for name in names}
        source = ASTSource(kernel, types, constants)
        options = {"num_warps": WARPS, "num_stages": 1}
        made = compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        found[kernel.__name__] = made.metadata.shared
    return found


@pytest.mark.long
def test_kernels_compile_and_fit():
    pytest.importorskip("triton", reason="its compiler is what is tested")
    surroundings = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", __file__]
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 2
    assert all(0 < size <= SHARED for size in found.values()), found


if __name__ == "__main__":
    print(json.dumps(shared_memory()))
