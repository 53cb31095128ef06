"""Shared test set-up: one thread per worker, fixed seeds, no deadlines, no AMX instructions."""

import os

# Some virtual machines announce AMX and refuse it; oneDNN must be told before torch is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import hypothesis
import pytest
import torch

# No test asserts a time, so no example has a deadline either.
hypothesis.settings.register_profile("weft", deadline=None)
hypothesis.settings.load_profile("weft")
torch.set_num_threads(1)
if not torch.cuda.is_available():
    # Without a GPU, Triton kernels run interpreted.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
