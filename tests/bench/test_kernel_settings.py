"""The kernels start by the settings that were fastest, row by row."""

import importlib.util
from pathlib import Path

import pytest

from weft.kernels.block_sparse import triton as block_sparse
from weft.kernels.lsh import triton as lsh_triton
from weft.rows import read

ROOT = Path(__file__).parents[2]
PATH = ROOT / "benchmarks/cases/kernel_settings.py"
SPEC = importlib.util.spec_from_file_location("kernel_settings", PATH)
SCRIPT = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(SCRIPT)
ROWS = read(ROOT / "benchmarks/results/h200_kernel_settings.jsonl")
CLOSE = 1.01  # times the fastest: as good

# Of a block size and a width, all cases that were timed.
TUNED = {}
for name, case in SCRIPT.CASES.items():
    TUNED.setdefault((case.block, case.width), []).append(name)


def check(kernel, chosen, cases):
    order = SCRIPT.fastest(ROWS, *cases)[kernel]
    share = next(share for share, setting in order if setting == chosen)
    assert share <= CLOSE * order[0][0], f"{chosen} takes {share:.2f}, {order[0]}"


def plain(program):
    """As it is written: without the last number where that is 1."""
    return tuple(program[:4]) if program.unroll == 1 else tuple(program)


@pytest.mark.parametrize(("block", "width"), TUNED)
@pytest.mark.parametrize("kernel", ["forward", "dq", "dkdv"])
def test_block_sparse_kernels_start_by_the_fastest_setting(block, width, kernel):
    check(kernel, plain(block_sparse.TUNING[block][kernel][width]), TUNED[block, width])


@pytest.mark.parametrize("kernel", ["forward", "backward"])
def test_so_do_those_that_gather(kernel):
    check(kernel, plain(getattr(lsh_triton, kernel.upper())[16]), [SCRIPT.RING])


def test_the_better_of_two_rounds_counts_and_all_cases_have_a_say():
    def rows(case, setting, *times):
        given = {"case": case, "kernel": "dq", "setting": setting}
        return [given | {"ms": time} for time in times]

    found = [*rows("a", [1], 4.0, 1.0), *rows("a", [2], 2.0, 2.0), *rows("a", [3], 1.0, None)]
    found += [*rows("b", [1], 4.0), *rows("b", [2], 1.0), *rows("b", [3], None)]
    assert SCRIPT.fastest(found, "a") == {"dq": [(1.0, (1,)), (1.0, (3,)), (2.0, (2,))]}
    assert SCRIPT.fastest(found, "a", "b") == {"dq": [(1.5, (2,)), (2.5, (1,))]}


def test_a_slower_setting_is_noticed():
    with pytest.raises(AssertionError, match="takes 2"):
        check("dq", (128, 64, 8, 2), ["32"])


def test_all_results_of_a_kernel_agree():
    """Programs of other shapes add in another order, and nothing else differs."""
    away = [row["difference"] for row in ROWS if row["error"] is None]
    assert len(away) > 400
    assert max(away) < 5e-3


def test_what_is_tried_fits_its_block():
    for block, kernels in SCRIPT.TRIED.items():
        for settings in kernels.values():
            for rows, step, *_ in settings:
                assert block % rows == block % step == 0
    for block, kernels in block_sparse.TUNING.items():
        for by_width in kernels.values():
            assert tuple(by_width) == block_sparse.WIDTHS
            assert all(block % s.rows == block % s.step == 0 for s in by_width.values())
