"""Several processes on one machine that run many checks: starting them costs more than a check.

    python worlds.py RANKS CHECK [CHECK ...]

A check is a function of `checks.py` by name, with arguments after colons. All ranks run each one;
rank 0 prints a JSON line {"check": ..., "error": null or text} for it. torch is loaded once and the
ranks are forks.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from datetime import timedelta

import torch

torch.set_num_threads(1)

import checks  # noqa: E402  # after the threads are set
import torch.distributed as dist  # noqa: E402

TIMEOUT = timedelta(seconds=60)  # a rank that waits longer has lost the others


def main(ranks: int, names: list[str]) -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks}
            own |= {"MASTER_ADDR": "localhost", "MASTER_PORT": port}
            os.environ.update({name: str(value) for name, value in own.items()})
            os._exit(run(rank, names))
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


def run(rank: int, names: list[str]) -> int:
    dist.init_process_group("gloo", timeout=TIMEOUT)
    for name in names:
        function, *args = name.split(":")
        error = None
        try:
            getattr(checks, function)(*args)
        except Exception:
            error = traceback.format_exc()
        errors: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(errors, error)
        if rank == 0:
            first = next((text for text in errors if text), None)
            print(json.dumps({"check": name, "error": first}), flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
