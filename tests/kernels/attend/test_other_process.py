"""A pattern means the same in another process: pickled there, it gives the same attention."""

import os
import pickle
import subprocess
import sys

import pytest
import torch

from weft import patterns as P
from weft.kernels.attend.api import attend
from weft.mixers import MIXERS
from weft.mixers.base import Frame
from weft.patterns.derive import mask

N, D = 96, 16
PATTERNS = {
    "window": P.Sliding(20),
    "combined": P.Causal() & (P.Sliding(8) | P.Strided(16)),
    "random": P.RandomBlocks(2, 16, 3),
    "negated": ~P.Sliding(3) & P.Causal() | P.Keys(first=1),
}

# What the other process does: patterns of its own first, then the one that it is sent.
OTHER = """
import os, pickle, sys
os.environ["TRITON_INTERPRET"] = "1"  # also where there is a GPU: tensors are on a CPU
import torch
import weft.kernels.block_sparse.triton as block_sparse
from kernels.programs import small_programs
from weft.kernels.attend.api import attend
from weft.mixers import MIXERS
from weft.mixers.base import Frame

block_sparse.TUNING = {size: small_programs(64, 64, 4, 1) for size in (128, 64)}
for window in (1, 2, 3):
    MIXERS.parse(f"sliding_window(window={window})").build(Frame(dim=32, heads=2))
q, k, v, pattern, kernel, compiled = pickle.load(sys.stdin.buffer)

def call(q, k, v):
    return attend(q, k, v, pattern, kernel=kernel)

run = torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call
sys.stdout.buffer.write(pickle.dumps((pattern, run(q, k, v))))
"""


def in_another_process(*given):
    done = subprocess.run(
        [sys.executable, "-c", OTHER],
        input=pickle.dumps(given),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return pickle.loads(done.stdout)


def used(pattern):
    """The pattern of a module, after whatever a module keeps with it."""
    mixer = MIXERS.make("pattern", reads=str(pattern)).build(Frame(dim=32, heads=2, causal=False))
    assert mixer.pattern == pattern
    return mixer.pattern


@pytest.mark.parametrize(
    ("name", "kernel", "compiled"),
    [
        ("window", "auto", False),
        ("window", "triton", True),
        ("combined", "triton", True),
        ("random", "gather", False),
        ("negated", "triton", False),
    ],
)
def test_attention_is_the_same_in_another_process(name, kernel, compiled):
    torch.manual_seed(0)
    pattern = used(PATTERNS[name])
    q, k, v = (torch.randn(1, 2, N, D) for _ in range(3))
    there, out = in_another_process(q, k, v, pattern, kernel, compiled)
    assert there == pattern
    assert hash(there) == hash(pattern)
    seen = mask(PATTERNS[name], N)[None]
    scores = (q.double() @ k.double().mT * D**-0.5).masked_fill(~seen, -1e30)
    expected = (scores.softmax(-1) * seen) @ v.double()
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out, attend(q, k, v, pattern, kernel="gather"), rtol=1e-4, atol=1e-4)
