"""Shape comments hold while every mixer runs: forward, backward, padded, crossing and decoding."""

from pathlib import Path

import pytest

import weft
from weft.mixers import MIXERS
from weft.testing import variants
from weft.testing.mixer_shapes import traced

SOURCES = sorted(Path(weft.__file__).parent.rglob("*.py"))
CONFIGS = [config for name in MIXERS for config in variants(MIXERS[name])]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_comments_hold(config):
    trace = traced(config, SOURCES)
    assert trace.compared > 0, "no shape comment was met"
    assert not trace.problems, "\n".join(dict.fromkeys(trace.problems))
