"""A hundred thousand tokens, decoded one by one: memory stays flat where the state is constant."""

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


def resident() -> int:
    """Bytes that this process holds now."""
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
                gc.collect()
                before = resident()
    gc.collect()
    assert model.state_size(tokens) == model.state_size(10)
    return resident() - before, model.state_size(tokens)


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
@pytest.mark.parametrize("mixer", CONSTANT)
def test_a_constant_state_decodes_in_flat_memory(mixer):
    assert growth(mixer, TOKENS)[0] < 4 << 20


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_a_growing_state_is_noticed():
    torch.manual_seed(0)
    kept, before = [], resident()
    for _ in range(TOKENS):
        kept.append(torch.zeros(64))
    assert resident() - before > 4 << 20
