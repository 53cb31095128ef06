"""The benchmark on a GPU: events, graphs, memory."""

import pytest
import torch

from weft.bench import Bench, Case, Setting, choose
from weft.bench.memory import peak_bytes

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("graph", [False, True])
def test_numbers_on_a_gpu(graph):
    cases = choose("longformer(window=257, global_first=8)", patterns="sliding(128)", core=True)
    setting = Setting(device="cuda", dtype="bfloat16", heads=4)
    bench = Bench(cases=cases, setting=setting, lengths=[4096], rounds=3, graph=graph, memory=True)
    rows = [row for some in bench.run() for row in some]
    numbers = {(r["kind"], r["case"], r["measure"]): r for r in rows if r["error"] is None}
    for kind in ("layer", "core"):
        dense = numbers[kind, "full", "forward+backward"]
        assert dense["median_s"] > 0
        assert dense["graph"] is graph
    assert numbers["layer", "full", "memory"]["peak_bytes"] > 0
    reasons = {row["error"] for row in rows if row["error"]}
    assert all("has no core that is separate" in reason for reason in reasons)


def test_the_peak_holds_the_gradient_of_the_input():
    """q, k, v (b, h, n, d) get gradients of their own size, and there is an output."""
    n, setting = 8192, Setting(device="cuda", dtype="float32", heads=4)
    each = 4 * n * 64 * 4
    found = peak_bytes(Case("core", "full"), setting, n)
    assert 4 * each <= found < 20 * each


def test_out_of_memory_becomes_a_row():
    """A synthesizer's scores (h, n, n) do not fit into what this test leaves free."""
    total = torch.cuda.get_device_properties(0).total_memory
    setting = Setting(device="cuda", dtype="float32", heads=8)
    bench = Bench(cases=choose("synthesizer"), setting=setting, lengths=[8192], rounds=1)
    torch.cuda.set_per_process_memory_fraction(2**31 / total)
    try:
        rows = [row for some in bench.run() for row in some]
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    by_case = {(row["case"], row["measure"]): row for row in rows}
    assert by_case["full", "forward+backward"]["median_s"] > 0
    assert "OutOfMemoryError" in by_case["synthesizer", "forward+backward"]["error"]
