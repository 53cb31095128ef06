"""Shape comments hold while every mixer runs: forward, backward, padded, crossing and decoding."""

from pathlib import Path

import pytest
import torch

import weft
from weft.mixers import MIXERS
from weft.testing import checked_shapes, variants
from weft.testing.cases import frames, lengths_mask, refusal, tokens

SOURCES = sorted(Path(weft.__file__).parent.rglob("*.py"))
CONFIGS = [config for name in MIXERS for config in variants(MIXERS[name])]
# Sizes that differ from each other, so that one letter cannot pass for another.
SIZES = {"dim": 20, "heads": 4, "head_dim": 6}


def exercise(config, frame):
    mixer = config.build(frame)
    x = tokens(3, 23, frame.dim, dtype=torch.float32).requires_grad_()
    mixer(x).sum().backward()
    mixer(x, valid=lengths_mask([23, 9, 0], 23)).sum().backward()
    if config.traits.cross and not frame.causal:
        context = tokens(3, 11, frame.dim, dtype=torch.float32)
        mixer(x, context=context, context_valid=lengths_mask([11, 5, 2], 11))
    if config.traits.state is not None and frame.causal:
        _, state = mixer.step(x[:, :13], mixer.start(3))
        mixer.step(x[:, 13:14], state)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_comments_hold(config):
    chosen = [*frames(config, **SIZES), *frames(config, **SIZES, kv_heads=2)]
    able = [frame for frame in chosen if refusal(config, frame) is None]
    assert able, "no frame to run in"
    with checked_shapes(SOURCES) as trace:
        for frame in able:
            exercise(config, frame)
    assert trace.compared > 0, "no shape comment was met"
    assert not trace.problems, "\n".join(dict.fromkeys(trace.problems))
