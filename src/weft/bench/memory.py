"""Peak memory of one forward and backward pass, beyond the weights and the input.

On a GPU the allocator reports it. On a CPU each case runs in a separate process, which reads its
peak before and after: the order of cases changes nothing. On Linux a child inherits `ru_maxrss`
through fork and exec, so a large parent would hide its child's growth; there the peak is read from
/proc, which is reset for each program.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from weft.bench.cases import Case
from weft.bench.setting import Setting
from weft.bench.timing import Call, forward_backward
from weft.environment import process_peak
from weft.errors import WeftError

SMALL = 16  # tokens of the pass that loads libraries before the first reading


def peak_bytes(case: Case, setting: Setting, n: int) -> int:
    """Bytes above those allocated before the pass."""
    if setting.device == "cuda":
        call = forward_backward(case.build(setting, n), case.inputs(setting, n))
        return cuda_peak(call)
    return _in_subprocess(case, setting, n)


def cuda_peak(call: Call) -> int:
    """The allocator's peak during a call; a first call compiles the kernels."""
    call()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def cpu_peak(case: Case, setting: Setting, n: int) -> int:
    """The growth of this process's peak; meant for a process that does nothing else."""
    module = case.build(setting, n)
    small = min(SMALL, n)
    forward_backward(module, case.inputs(setting, small))()
    call = forward_backward(module, case.inputs(setting, n))
    before = process_peak()
    call()
    return process_peak() - before


def _in_subprocess(case: Case, setting: Setting, n: int) -> int:
    job = {"kind": case.kind, "name": case.name, "length": n, "setting": asdict(setting)}
    source = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    threads = str(torch.get_num_threads())
    done = subprocess.run(
        [sys.executable, "-m", "weft.bench.child", json.dumps(job)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": threads},
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise WeftError(f"the separate process failed: {last}")
    return int(done.stdout.strip().splitlines()[-1])
