"""The feature-map kernels compiled for an H200, which needs none: they fit its shared memory.

Those of wide heads hold no asynchronous products: see `WIDE`.
"""

import json
import os
import subprocess
import sys

import pytest

from weft.kernels.linear_attention.triton import SHARED, _settings, stages_that_fit

CASES = {  # kind, features, width of x where directions make the features, width of values
    "elu": ("elu", 64, 0, 64),
    "wide elu": ("elu", 128, 0, 128),
    "exp": ("exp", 267, 64, 64),
    "wide exp": ("exp", 621, 128, 128),
}
HALVES = {"x_ptr", "y_ptr", "q_ptr", "k_ptr", "v_ptr", "o_ptr", "g_ptr", "w_ptr", "near_ptr"}
HALVES |= {"near_r_ptr", "dq_ptr", "dk_ptr", "dv_ptr"}
FLOATS = {"scale", "c", "floor", "eps"}


def signature(names, constants):
    """Types of a kernel's arguments, as the launcher would find them."""
    types = {}
    for name in names:
        pointer = "*bf16" if name in HALVES else "*fp32"
        number = "fp32" if name in FLOATS else "i32"
        types[name] = pointer if name.endswith("_ptr") else number
        types[name] = "constexpr" if name in constants else types[name]
    return types


def compiled(case):
    """Bytes of shared memory that each kernel takes, and whether it has asynchronous products."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from weft.kernels.linear_attention import kernels

    kind, f, d, e = CASES[case]
    cut = _settings(d > 0, d, e)
    blocks = {"W": cut.chunk, "F": f, "P": -(-f // cut.tile) * cut.tile, "D": d, "E": e}
    blocks |= {"T": cut.tile, "KIND": kind, "GATED": kind == "exp", "AFTER": True}
    blocks["LEARNED"] = False
    found = {}
    for name in ("sums", "forward", "backward"):
        kernel, launch = getattr(kernels, f"{name}_kernel"), getattr(cut, name)
        constants = {key: blocks[key] for key in kernel.arg_names if key in blocks}
        source = ASTSource(kernel, signature(kernel.arg_names, constants), constants)
        stages = stages_that_fit(launch.stages, cut.chunk, cut.tile, d, e)
        options = {"num_warps": launch.warps, "num_stages": stages}
        made = compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        found[name] = made.metadata.shared, "wgmma.mma_async" in made.asm["ptx"]
    return found


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_kernels_compile_and_fit(case):
    pytest.importorskip("triton", reason="its compiler is what is tested")
    surroundings = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", __file__, case]
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 3
    assert all(0 < size <= SHARED for size, _ in found.values()), found
    assert any(fast for _, fast in found.values()) != case.startswith("wide"), found


if __name__ == "__main__":
    print(json.dumps(compiled(sys.argv[1])))
