"""Launch settings of our attention kernels, timed one by one: rows, steps, warps, stages.

    python benchmarks/cases/kernel_settings.py --out benchmarks/results/h200_kernel_settings.jsonl

What is fastest stands in `TUNING` (kernels/block_sparse/triton.py), FORWARD and BACKWARD (kernels/
lsh_triton.py). A setting is timed twice, in turns with all others, and its result is compared with
that of the first of its list. Kernels are compiled ahead, in as many processes as --workers says.
"""

import argparse
import multiprocessing
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from weft.rows import append

ROUNDS = 2
CALLS = 7


class Case(NamedTuple):
    """What the block-sparse kernels are timed on."""

    batch: int
    heads: int
    length: int
    width: int
    pattern: str
    dropout: float
    block: int


CASES = {
    "16": Case(256, 4, 1024, 16, "sliding(257)", 0.0, 128),
    "16, dropout": Case(256, 4, 1024, 16, "sliding(257)", 0.2, 128),
    "32": Case(12, 4, 16384, 32, "blocked(window2d(8, 3), 128)", 0.0, 128),
    "64": Case(1, 12, 65536, 64, "sliding(257)", 0.0, 128),
    "64, dropout": Case(32, 4, 4096, 64, "sliding(257)", 0.1, 128),
    "128": Case(1, 12, 32768, 128, "sliding(257)", 0.0, 128),
    "32, blocks of 64": Case(12, 4, 16384, 32, "blocked(window2d(16, 3), 64)", 0.0, 64),
    "64, blocks of 64": Case(1, 12, 65536, 64, "blocked(sliding(3), 64)", 0.0, 64),
}
# Rows of a program, keys or queries per step, warps, stages, steps between two waits.
TRIED = {
    128: {
        "forward": (
            (128, 128, 4, 2), (128, 128, 4, 3), (64, 128, 4, 2), (64, 64, 4, 2), (64, 64, 4, 3),
            (128, 64, 4, 3), (128, 128, 8, 2), (64, 64, 4, 2, 2), (64, 128, 4, 2, 2),
        ),
        "dq": (
            (128, 64, 8, 2), (128, 64, 4, 2), (64, 64, 4, 2), (64, 64, 4, 3), (64, 32, 4, 3),
            (64, 64, 4, 2, 2), (64, 32, 4, 3, 2), (64, 32, 4, 2, 2), (128, 32, 4, 3),
        ),
        "dkdv": (
            (128, 128, 8, 2), (128, 64, 8, 2), (128, 64, 4, 2), (128, 32, 4, 3), (64, 64, 4, 2),
            (64, 64, 4, 3), (64, 32, 4, 3), (128, 32, 4, 3, 2), (64, 64, 4, 2, 2),
            (64, 32, 4, 3, 2),
        ),
    },
    64: {
        "forward": (
            (64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 4, 2, 2), (64, 64, 4, 3, 2), (64, 32, 4, 3),
        ),
        "dq": (
            (64, 32, 4, 3), (64, 64, 4, 2), (64, 64, 4, 3), (64, 32, 4, 3, 2), (64, 64, 4, 2, 2),
            (64, 32, 4, 2, 2),
        ),
        "dkdv": (
            (64, 64, 4, 3), (64, 64, 4, 2), (64, 32, 4, 3), (64, 32, 4, 3, 2), (64, 64, 4, 2, 2),
            (64, 32, 4, 2, 2),
        ),
    },
}  # fmt: skip
RING = "ring, 16, dropout"  # Long Range Arena's Reformer on pictures: heads of 8, held as 16
RING_TRIED = {
    "forward": (
        (64, 32, 4, 3), (64, 64, 4, 2), (64, 64, 4, 3), (64, 32, 4, 2), (128, 32, 4, 3),
        (128, 64, 4, 2),
    ),
    "backward": (
        (64, 16, 4, 2), (64, 32, 4, 2), (64, 32, 4, 3), (128, 16, 4, 2), (128, 32, 4, 2),
        (64, 64, 4, 2),
    ),
}  # fmt: skip

Trial = tuple[str, str, tuple[int, ...]]  # case, kernel, setting


def trials() -> Iterator[Trial]:
    """Everything that is tried, in order."""
    for case, given in CASES.items():
        for kernel, settings in TRIED[given.block].items():
            yield from ((case, kernel, setting) for setting in settings)
    for kernel, settings in RING_TRIED.items():
        yield from ((RING, kernel, setting) for setting in settings)


def install(case: str, kernel: str, setting: tuple[int, ...]) -> None:
    """Make the kernel start by this setting."""
    from weft.kernels.block_sparse import triton as block_sparse
    from weft.kernels.launch import Program
    from weft.kernels.lsh import triton as lsh_triton

    if case == RING:
        {"forward": lsh_triton.FORWARD, "backward": lsh_triton.BACKWARD}[kernel][16] = Program(
            *setting
        )
    else:
        given = CASES[case]
        tuned = block_sparse.TUNING[given.block][kernel]
        tuned[given.width] = Program(*setting)


def prepared(case: str) -> dict[str, Callable[[], Any]]:
    """The kernels of a case by name, each a call that returns what it computed."""
    return ring() if case == RING else block_sparse_calls(CASES[case])


def block_sparse_calls(case: Case) -> dict[str, Callable[[], Any]]:
    import torch

    from weft.kernels.block_sparse import kernels
    from weft.kernels.block_sparse import triton as own
    from weft.kernels.block_sparse.lists import steps_of
    from weft.kernels.dropout import Dropout
    from weft.patterns import pattern
    from weft.patterns.lower import Lowered, Part
    from weft.patterns.order import Order

    b, h, n, d = case[:4]
    torch.manual_seed(0)
    qkv = torch.randn(b, n, 3 * h * d, device="cuda", dtype=torch.bfloat16)
    q, k, v = (x.unflatten(-1, (h, d)).transpose(1, 2) for x in qkv.chunk(3, -1))
    natural = Lowered((Part(pattern(case.pattern), Order(n), Order(n), n),))
    (step,) = steps_of(natural, case.block, b * h, n, q.device)
    drop = Dropout.of(case.dropout, q.device)
    out, dout, dq, dk, dv = (own._like(q) for _ in range(5))
    dout.normal_()
    lse, base, delta = (q.new_empty(b, h, n, dtype=torch.float32) for _ in range(3))

    launch = own.launch_of(step, q, k, d**-0.5, None, drop)
    heads = {"q": q, "k": k, "v": v}

    def forward() -> Any:
        tensors, strided = heads | {"out": out, "lse": lse}, heads | {"o": out, "s": lse}
        launch.start(kernels.forward_kernel, "forward", tensors, strided, INIT=False)
        return out

    def gradient_of_queries() -> Any:
        row_sums = {"lse": lse, "base": base, "delta": delta}
        own.query_gradients(launch, v, out, dout, dq, row_sums)
        return dq

    def gradients_of_keys() -> Any:
        given = heads | {"dout": dout, "base": base, "delta": delta}
        own._key_gradients(launch, given, dk, dv, True)
        return torch.cat((dk, dv))

    return {"forward": forward, "dq": gradient_of_queries, "dkdv": gradients_of_keys}


def ring() -> dict[str, Callable[[], Any]]:
    import torch

    from weft.kernels.dropout import Dropout
    from weft.kernels.lsh import triton as lsh_triton

    b, h, n, d = 256, 8, 1025, 8
    torch.manual_seed(0)
    x, v, dout = (torch.randn(b, h, n, d, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    buckets = torch.randint(0, 10, (b, h, 1, n), device="cuda")
    length = torch.full((b,), n, device="cuda")
    runs = lsh_triton.runs_of_order(buckets, 10, length, chunk=103, lookback=1, padded=False)
    launch = lsh_triton.GatherLaunch(x, v, runs, d**-0.5, Dropout.of(0.2, x.device))
    norm = launch.norms(0.0)
    lse, delta = launch.forward(norm)[1].view(b, h, n), x.new_zeros(b, h, n, dtype=torch.float32)
    return {
        "forward": lambda: launch.forward(norm)[0],
        "backward": lambda: launch.backward(dout, norm, lse, delta)[0],
    }


def compile_all(some: list[Trial]) -> None:
    """Run each once, so that its kernel lies in Triton's cache."""
    import torch

    case, calls = None, {}
    for name, kernel, setting in some:
        if name != case:
            case, calls = name, prepared(name)
        install(name, kernel, setting)
        try:
            calls[kernel]()
            torch.cuda.synchronize()
        except Exception as error:  # it is told when it is timed
            print(name, kernel, setting, str(error)[:100], flush=True)


def compile_ahead(workers: int) -> None:
    """All kernels, in several processes."""
    context, todo = multiprocessing.get_context("spawn"), list(trials())
    started = [
        context.Process(target=compile_all, args=(todo[at::workers],)) for at in range(workers)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join()


def timed(call: Callable[[], Any]) -> float:
    """Milliseconds of a call: the median of several."""
    import torch

    marks = [torch.cuda.Event(enable_timing=True) for _ in range(CALLS + 1)]
    for mark in marks:
        mark.record()
        call()
    torch.cuda.synchronize()
    times = sorted(a.elapsed_time(b) for a, b in pairwise(marks))
    return times[len(times) // 2]


def measured() -> Iterator[dict[str, Any]]:
    """Rows: each setting of each kernel, `ROUNDS` times; where one fails, its error."""
    case, calls, first = None, {}, {}
    for turn in range(ROUNDS):
        for name, kernel, setting in trials():
            if name != case:
                case, calls = name, prepared(name)
                for call in calls.values():  # each reads what the one before it wrote
                    call()
            given = CASES[name]._asdict() if name in CASES else {}
            row = {"case": name, "kernel": kernel, "setting": list(setting), "round": turn, **given}
            install(name, kernel, setting)
            try:
                found = calls[kernel]().float()
                told = first.setdefault((name, kernel), found)
                away = ((found - told).norm() / told.norm()).item()
                yield row | {"ms": timed(calls[kernel]), "difference": away, "error": None}
            except Exception as error:
                yield row | {"ms": None, "difference": None, "error": str(error)[:120]}


def fastest(rows: list[dict[str, Any]], *cases: str) -> dict[str, list[tuple[float, Any]]]:
    """Settings of each kernel from fast to slow: mean over cases of time to the fastest of each."""
    found: dict[str, list[tuple[float, Any]]] = {}
    for kernel in dict.fromkeys(row["kernel"] for row in rows if row["case"] in cases):
        shares: dict[Any, list[float]] = {}
        for case in cases:
            times: dict[Any, float] = {}
            for row in rows:
                if (row["case"], row["kernel"]) == (case, kernel) and row["ms"] is not None:
                    setting = tuple(row["setting"])
                    times[setting] = min(row["ms"], times.get(setting, row["ms"]))
            best = min(times.values())
            for setting, time in times.items():
                shares.setdefault(setting, []).append(time / best)
        everywhere = {s: sum(x) / len(x) for s, x in shares.items() if len(x) == len(cases)}
        found[kernel] = sorted((share, setting) for setting, share in everywhere.items())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--workers", type=int, default=12, help="processes that compile")
    args = parser.parse_args()
    from weft.environment import environment

    compile_ahead(args.workers)
    stamp, rows = environment("cuda"), []
    for row in measured():
        rows.append(row | stamp)
        append(args.out, rows[-1:])
    for case in (*CASES, RING):
        for kernel, order in fastest(rows, case).items():
            shown = ", ".join(f"{setting} {share:.2f}" for share, setting in order[:4])
            print(f"{case:20s} {kernel:8s} {shown}")


if __name__ == "__main__":
    main()
