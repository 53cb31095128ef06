"""The attention kernels compiled for an H200, which needs none: they fit, their loops are counted.

The interpreter accepts what the compiler refuses, such as a name that changes its type.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from weft.rows import read

ROOT = Path(__file__).parents[3]
SHARED = 227 * 1024  # bytes that a program may take
PARTS = {"forward": 2, "dq": 2, "dkdv": 2}  # masked blocks, whole blocks


@pytest.mark.long
def test_kernels_compile_and_fit(tmp_path):
    pytest.importorskip("triton", reason="its compiler is what is tested")
    surroundings = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    surroundings["PYTHONPATH"] = str(ROOT / "src")
    script, out = ROOT / "benchmarks/cases/instructions.py", tmp_path / "rows.jsonl"
    command = [sys.executable, "-W", "ignore", str(script), "--out", str(out), "--widths", "16"]
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = read(out)
    counted = {}
    for row in rows:
        counted.setdefault((row["case"], row["dropout"]), []).append(row["per_pair"])
    for drops in (False, True):
        for block in (128, 64):
            for name, loops in PARTS.items():
                assert len(counted[f"block_sparse {name}, {block}", drops]) == loops
        assert len(counted["ring forward", drops]) == 1
        assert len(counted["ring backward", drops]) == 2
    assert all(0 <= row["shared"] <= SHARED and row["registers"] <= 255 for row in rows)
    whole = {name: counted[f"block_sparse {name}, 128", False] for name in PARTS}
    assert all(masked > plain > 1 for masked, plain in whole.values()), whole
