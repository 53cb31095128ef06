"""Threads wait for each other without burning a busy machine, and outlive a fork."""

import os
import subprocess
import sys

import pytest
import torch
from native_models import VOCAB, sparse_model

from weft import native

pytestmark = pytest.mark.skipif(native.available() is not None, reason="no C++ compiler")


def test_waiting_threads_look_a_bounded_number_of_times_then_sleep():
    model = native.compile(sparse_model())
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        native.set_threads(2 * (os.cpu_count() or 1) + 1)  # more than there are cores
        before = native.waits()
        one = model.generate(torch.zeros(1, 1, dtype=torch.long), 20)
        after = native.waits()
    finally:
        for process in busy:
            process.kill()
            process.wait()
        native.set_threads(None)
    waits, looks, sleeps = (after[k] - before[k] for k in ("waits", "looks", "sleeps"))
    assert waits > 100
    assert looks <= waits * after["limit"]
    assert sleeps > 0
    assert torch.equal(one, model.generate(torch.zeros(1, 1, dtype=torch.long), 20))


FORK = """
import os, sys
import torch
from weft import native
from native_models import sparse_model

torch.manual_seed(0)
model = native.compile(sparse_model())
native.set_threads(2)
prompt = torch.zeros(1, 2, dtype=torch.long)
want = model.generate(prompt, 9).tolist()
child = os.fork()
if child == 0:
    os._exit(0 if model.generate(prompt, 9).tolist() == want else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_decodes_too():
    here = os.path.dirname(__file__)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": here},
    )
    assert done.stdout.strip() == "0", done.stderr[-2000:]


def test_two_python_threads_may_decode_at_once():
    from concurrent.futures import ThreadPoolExecutor

    model = native.compile(sparse_model())
    prompts = [torch.randint(VOCAB, (1, n)) for n in (2, 5)]
    alone = [model.generate(prompt, 30) for prompt in prompts]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda prompt: model.generate(prompt, 30), prompts))
    assert all(torch.equal(a, b) for a, b in zip(together, alone, strict=True))
