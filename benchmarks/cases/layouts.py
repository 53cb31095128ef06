"""How long a block layout takes and how much memory: one JSON line per pattern and length.

    PYTHONPATH=src python benchmarks/cases/layouts.py [--lengths 65536,1048576] [--rounds 9]

Every case runs in a fresh process on one core. `layout_ms` is the median over rounds of building
the layout in natural order, `lower_ms` that of lowering the pattern to parts with their layouts;
caches are emptied before each round. `growth_mib` is how far the peak resident size of the process
rises above what it held before the first layout of that length.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

PATTERNS = {
    "causal sliding": "causal & sliding(512)",
    "longformer": "sliding(257) | global(first=64)",
}
BLOCK = 128


def measure(text: str, n: int, rounds: int) -> dict[str, object]:
    """One case, in this process."""
    import numpy as np

    from weft.patterns import Order, layout, pattern
    from weft.patterns.lower import lower

    made = pattern(text)

    def build(length: int):
        layout.cache_clear()
        return layout(made, Order(length), Order(length), length, BLOCK)

    def split(length: int):
        layout.cache_clear()
        lower.cache_clear()
        return lower(made, length, length, BLOCK).computed_pairs(BLOCK)

    build(4096), split(4096)  # what a first call imports and allocates is no part of the growth
    before = resident()
    layout_ms, visible = timed(build, n, rounds)
    lower_ms, pairs = timed(split, n, rounds)
    return {
        "pattern": text,
        "tokens": n,
        "block": BLOCK,
        "layout_ms": layout_ms,
        "lower_ms": lower_ms,
        "growth_mib": round(peak() - before, 1),
        "blocks": len(visible.cols),
        "computed_pairs": pairs,
        "rounds": rounds,
        "cpu": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def timed(act, n: int, rounds: int) -> tuple[float, object]:
    """Median milliseconds, and what the last round returned."""
    seconds, result = [], None
    for _ in range(rounds):
        start = time.perf_counter()
        result = act(n)
        seconds.append(time.perf_counter() - start)
    return round(1000 * statistics.median(seconds), 2), result


def resident() -> float:
    """MiB held now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def peak() -> float:
    """MiB held at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--lengths", default="65536,1048576")
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--one", nargs=2, metavar=("PATTERN", "LENGTH"), help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.one:
        text, n = given.one
        print(json.dumps(measure(text, int(n), given.rounds)))
        return
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    for name, text in PATTERNS.items():
        for n in given.lengths.split(","):
            command = [sys.executable, __file__, "--rounds", str(given.rounds), "--one", text, n]
            line = subprocess.run(command, env=alone, check=True, capture_output=True, text=True)
            print(json.dumps({"case": name, **json.loads(line.stdout)}), flush=True)


if __name__ == "__main__":
    main()
