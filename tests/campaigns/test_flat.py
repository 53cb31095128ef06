"""Memory and handles stay flat while a model decodes and trains for long.

`WEFT_LONG_TOKENS` is how many tokens are decoded by each mechanism, `WEFT_LONG_STEPS` how many
updates are made.
"""

import gc
import os
from pathlib import Path

import pytest
import torch

from weft.layers.embedding import Embedding
from weft.mixers import MIXERS, Frame
from weft.models import Decoder, LanguageModel, Stack
from weft.testing import small

TOKENS = int(os.environ.get("WEFT_LONG_TOKENS", "20000"))
STEPS = int(os.environ.get("WEFT_LONG_STEPS", "1000"))
# State of one size at any length, so that growth can be nothing but a leak.
BOUNDED = [
    "sliding_window",
    "linear_transformer",
    "performer",
    "rfa",
    "gru",
    "sru",
    "transformer_xl",
]

needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")


def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def handles():
    return len(os.listdir("/proc/self/fd"))


def decode(model, tokens):
    state, ids = model.start(1), torch.zeros(1, 1, dtype=torch.long)
    with torch.no_grad():
        for _ in range(tokens):
            scores, state = model.next_scores(ids, state)
            ids = scores.argmax(-1, keepdim=True)
    return state


@needs_proc
@pytest.mark.long
@pytest.mark.parametrize("name", BOUNDED)
def test_decoding_does_not_grow(name):
    stack = Stack(frame=Frame(dim=16, heads=2), order="sf", mixer=str(small(MIXERS[name])))
    trunk = Decoder(embedding=Embedding(vocab=31), stack=stack)
    model = LanguageModel(trunk=trunk).build().eval()
    decode(model, TOKENS // 10)  # caches fill
    before, open_before = resident(), handles()
    state = decode(model, TOKENS)
    grown = resident() - before
    assert grown < 8 * 2**20, f"{grown / 2**20:.1f} MiB more after {TOKENS:,} tokens"
    assert handles() == open_before
    del state


@needs_proc
@pytest.mark.long
def test_many_generations_leave_nothing_behind():
    stack = Stack(frame=Frame(dim=16, heads=2), order="sf", mixer="full")
    model = LanguageModel(trunk=Decoder(embedding=Embedding(vocab=31), stack=stack)).build()
    prompt = torch.zeros(2, 3, dtype=torch.long)
    for _ in range(20):
        model.generate(prompt, 20)
    before, open_before = resident(), handles()
    for _ in range(TOKENS // 100):
        model.generate(prompt, 20)
    assert resident() - before < 8 * 2**20
    assert handles() == open_before


@needs_proc
@pytest.mark.long
def test_training_steps_leave_nothing_behind():
    stack = Stack(frame=Frame(dim=16, heads=2), order="sf", mixer="longformer(window=4)")
    model = LanguageModel(trunk=Decoder(embedding=Embedding(vocab=31), stack=stack)).build()
    optimiser = torch.optim.AdamW(model.parameters())
    draw = torch.Generator().manual_seed(0)

    def steps(count):
        for _ in range(count):
            # Lengths that change, as a cache by length would grow.
            n = int(torch.randint(4, 40, (), generator=draw))
            ids = torch.randint(31, (2, n), generator=draw)
            model(ids).square().mean().backward()
            optimiser.step()
            optimiser.zero_grad()

    steps(200)
    before, open_before = resident(), handles()
    steps(STEPS)
    assert resident() - before < 16 * 2**20
    assert handles() == open_before
