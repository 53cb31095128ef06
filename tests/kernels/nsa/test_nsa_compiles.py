"""The kernels of native sparse attention compiled for an H200, which needs none.

The interpreter accepts what the compiler refuses, such as a name that changes its type.
"""

import json
import os
import subprocess
import sys

import pytest

from weft.kernels.nsa import gates as nsa_gates
from weft.kernels.nsa import heads as nsa_heads
from weft.kernels.nsa import importance
from weft.kernels.nsa import lists as nsa_lists
from weft.kernels.nsa import triton as nsa_triton

SHARED = 227 * 1024  # bytes that a program may take
FLOATS = {"scale", "natural_scale", "grow"}
POINTERS = {"order": "*i64", "seeds": "*i64", "starts": "*i32", "cuts": "*i32", "owners": "*i32"}
POINTERS |= {"chosen_ptr": "*i32", "bucket_ptr": "*i16"}
POINTERS |= dict.fromkeys(("lse_ptr", "part_lse_ptr", "delta_ptr", "sums_ptr"), "*fp32")
POINTERS["weight_ptr"] = "*fp32"


def launches(group, drops=False):
    """Module, kernel, sizes, warps and stages, as they are launched for heads of 64."""
    (rows, *forward), (back, *backward), (join, *joins) = (
        nsa_triton.FORWARD,
        nsa_triton.BACKWARD,
        nsa_triton.JOIN,
    )
    queries, blocks, *weigh = importance.WEIGH
    pairs = {"GROUP": group, "WIDTH": 64, "SELECTED": 16}
    block = {"BLOCK": 64, "DROPS": drops}
    segments, keys = nsa_triton.SUMMED
    summed = {"SEGMENTS": segments, "ROWS": keys, "WIDTH": 64, "BLOCK": 64}
    flat = {"ROWS": nsa_gates.ROWS, "WIDTH": 64}
    sides = {"ROWS": nsa_heads.ROWS, "SUMS": True}
    weights = {"QUERIES": queries, "BLOCKS": blocks, "WIDTH": 64, "BLOCK": 64}
    askers, choosers, ahead = importance.CHOOSE
    choice = {"QUERIES": askers, "BLOCK": 64, "BITS": 256, "SELECTED": 16, "KEPT": 13}
    taken, lanes = nsa_lists.SIZES
    return (
        ("kernels", "forward", {"ROWS": rows, **pairs, **block}, *forward),
        ("kernels", "backward", {"ROWS": back, **pairs, **block}, *backward),
        ("kernels", "join", {"ROWS": join, **pairs, "WEIGHTED": True}, *joins),
        ("kernels", "delta", {"ROWS": join, "WIDTH": 64}, *joins),
        ("kernels", "keys", summed, 4, 3),
        ("gate_kernels", "forward", flat, nsa_gates.WARPS, 3),
        ("gate_kernels", "backward", flat, nsa_gates.WARPS, 3),
        ("head_kernels", "side_by_side", {**flat, **sides}, nsa_heads.WARPS, 3),
        ("list_kernels", "bucket", {"SIZE": taken}, 4, 3),
        ("list_kernels", "cut", {"SIZE": lanes}, 4, 3),
        ("importance_kernels", "importance", weights, *weigh),
        ("importance_kernels", "choose", {**choice, "AHEAD": ahead}, choosers, 3),
    )


def compiled(kernel, constants, warps, stages):
    """Bytes of shared memory that the kernel takes."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    types = {}
    for name in kernel.arg_names:
        number = "fp32" if name in FLOATS else "i32"
        types[name] = POINTERS.get(name, "*bf16" if name.endswith("_ptr") else number)
        types[name] = "constexpr" if name in constants else types[name]
    options = {"num_warps": warps, "num_stages": stages}
    source = ASTSource(kernel, types, constants)
    return compile(source, target=GPUTarget("cuda", 90, 32), options=options).metadata.shared


def broken():
    """A kernel in which a number becomes a row of numbers; the interpreter runs it."""
    import triton
    import triton.language as tl

    @triton.jit
    def kernel(out_ptr, n, SIZE: tl.constexpr):
        at = n + 1
        if n > 1:
            at = tl.arange(0, SIZE)
        tl.store(out_ptr + at, 1.0)

    return compiled(kernel, {"SIZE": 16}, 4, 2)


def all_compiled(group, drops):
    from importlib import import_module

    found = {}
    for module, name, *rest in launches(group, drops):
        kernels = import_module(f"weft.kernels.nsa.{module}")
        found[f"{module} {name}"] = compiled(getattr(kernels, f"{name}_kernel"), *rest)
    return found


def run(case):
    surroundings = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", __file__, case]
    return subprocess.run(command, env=surroundings, capture_output=True, text=True)


@pytest.mark.long
@pytest.mark.parametrize("group", [1, 16])
@pytest.mark.parametrize("drops", ["", "dropout"])
def test_kernels_compile_and_fit(group, drops):
    pytest.importorskip("triton", reason="its compiler is what is tested")
    done = run(f"{group} {drops}")
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == len(launches(group))
    assert all(0 <= size <= SHARED for size in found.values()), found


@pytest.mark.long
def test_a_broken_kernel_does_not_compile():
    pytest.importorskip("triton", reason="its compiler is what is tested")
    done = run("broken")
    assert done.returncode != 0
    assert "CompilationError" in done.stderr


if __name__ == "__main__":
    case = sys.argv[1]
    size, _, drops = case.partition(" ")
    print(json.dumps(broken() if case == "broken" else all_compiled(int(size), bool(drops))))
