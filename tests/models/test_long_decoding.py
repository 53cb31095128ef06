"""A hundred thousand tokens, decoded one by one: memory stays flat where the state is constant."""

import ctypes
import gc
import os
from pathlib import Path

import pytest
import torch
from model_parts import decoder

from weft.mixers import MIXERS
from weft.models import LanguageModel

TOKENS, SETTLED = 100_000, 2_000
CONSTANT = ("linear_transformer", "performer(features=8)", "rfa(features=8)", "sru", "brc")


pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="asks glibc"),
]


def resident() -> int:
    """Bytes that this process needs now: what was freed earlier would hide growth."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth(mixer: str, tokens: int) -> tuple[int, int]:
    """How much a greedy decode grows the process after its first tokens, and the state's size."""
    torch.manual_seed(0)
    model = LanguageModel(trunk=decoder(order="sf", mixer=MIXERS.parse(mixer))).build().eval()
    state, token, before = model.start(), torch.zeros(1, 1, dtype=torch.long), 0
    with torch.inference_mode():
        for step in range(tokens):
            scores, state = model.step(token, state)
            token = scores[:, -1:].argmax(-1)
            if step == SETTLED:
                before = resident()
    assert model.state_size(tokens) == model.state_size(10)
    return resident() - before, model.state_size(tokens)


@pytest.mark.parametrize("mixer", CONSTANT)
def test_a_constant_state_decodes_in_flat_memory(mixer):
    assert growth(mixer, TOKENS)[0] < 4 << 20


def test_a_growing_state_is_noticed():
    torch.manual_seed(0)
    pieces = [torch.zeros(64) for _ in range(TOKENS)]
    del pieces[:-1]  # free memory below the last one, which the next could take
    kept, before = [], resident()
    for _ in range(TOKENS):
        kept.append(torch.zeros(64))
    assert resident() - before > TOKENS * 64 * 4
