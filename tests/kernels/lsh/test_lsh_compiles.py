"""All kernels that gather inside themselves compiled for an H200, which needs none."""

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HEADS = {"narrow": (16, 8), "odd": (64, 48), "full": (64, 64), "wide": (128, 128)}
TYPES = {"index_ptr": "*i64", "bucket_ptr": "*i64", "nearest_ptr": "*i64", "near_ptr": "*fp32"}
TYPES |= {"part_ptr": "*bf16", "dx_part_ptr": "*bf16", "dv_part_ptr": "*bf16"}
TYPES |= {"part_lse_ptr": "*fp32", "rotation_ptr": "*fp32", "centroid_ptr": "*fp32"}
TYPES |= {"start_ptr": "*i32", "row_ptr": "*i32", "col_ptr": "*i32"}


def all_compiled(case):
    """How many kernels there were, in every form that is launched."""
    import instructions

    from weft.kernels import dropout_kernels
    from weft.kernels.lsh import bucket_kernels, routing_kernels
    from weft.kernels.lsh import kernels as attend
    from weft.kernels.lsh import row_kernels as rows
    from weft.kernels.lsh import triton as lsh_triton

    instructions.POINTERS.update(TYPES)
    instructions.FLOATS.update({"eps", "decay"})
    width, head = HEADS[case]
    sizes = {"HEAD": head, "WIDTH": width}
    forms = [(dropout_kernels.draw_kernel, {"BLOCK": 1024}, 4, 3)]
    for (ring, by_place), drops in product(((True, False), (False, False), (True, True)), (0, 1)):
        kind = {"RING": ring, "BY_PLACE": by_place, "DROPS": bool(drops)}
        for back in (False, True):
            forms.append((rows.columns_kernel, {"BLOCK": 1024, **kind, "BACK": back}, 4, 3))
        own = {**sizes, **kind, "rounds": 1, "group": 1}
        kernels = {
            attend.forward_kernel: lsh_triton.FORWARD,
            attend.backward_kernel: lsh_triton.BACKWARD,
        }
        for kernel, tuned in kernels.items():
            by = tuned[width]
            forms.append((kernel, {**own, "M": by.rows, "STEP": by.step}, by.warps, by.stages))
    once = [rows.norm_kernel, rows.merge_kernel, rows.sum_kernel, bucket_kernels.move_kernel]
    once += [routing_kernels.mean_kernel, routing_kernels.sum_kernel]
    forms += [(kernel, {"M": 32, **sizes}, 4, 3) for kernel in once]
    for by_place in (False, True):
        forms.append((rows.delta_kernel, {"M": 32, **sizes, "BY_PLACE": by_place}, 4, 3))
    own = {"M": 64, **sizes, "COLUMNS": 16}
    forms.append((bucket_kernels.hash_kernel, own, 4, 3))
    forms.append((bucket_kernels.nearest_kernel, {**own, "WRITES": True}, 4, 3))
    return len([instructions.built(*form) for form in forms])


@pytest.mark.long
@pytest.mark.parametrize("case", HEADS)
def test_kernels_compile(case):
    pytest.importorskip("triton", reason="its compiler is what is tested")
    surroundings = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    path = os.pathsep.join(str(ROOT / folder) for folder in ("src", "benchmarks/cases"))
    command = [sys.executable, "-W", "ignore", __file__, case]
    given = {**surroundings, "PYTHONPATH": path}
    done = subprocess.run(command, env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) == 35


if __name__ == "__main__":
    print(all_compiled(sys.argv[1]))
