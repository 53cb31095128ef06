"""Weights that are trained on a mesh equal those of one process; twins with a gap do not."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from checks import BROKEN, FEEDS

from weft.mixers import MIXERS

PROGRAM = Path(__file__).with_name("worlds.py")
SHORT = [
    "mixer:dp_replicate=2:full",
    "mixer:dp_shard=2:routing",
    "mixer:tp=2:longformer:causal",
    "feedforward:dp_replicate=2:product_key",
    "feedforward:dp_shard=2:switch",
    "feedforward:ep=2:gshard",
    "feedforward:tp=2:glu",
    "mixer:cp=2:routing",
    "parts:dp_shard=2",
    "memory:dp_shard=2",
    "memory:ep=2",
    "activations:dp_shard=2:full",
    "activations:cp=2:full",
    "activations:tp=2:full",
    "mixer:cp=2:full:causal",
    "rounding:cp=2:float32",
    "rounding:tp=2:float32",
    "rounding:dp_shard=2:float32",
    "annotated:tp=2",
    "early:dp_shard=2",
    "refuses:tp=2:mixer:sru:states are channels of the model",
    "refuses:ep=2:feedforward:dense:this model has none",
    "refuses:ep=2:feedforward:switch(experts=3):not a multiple of ep=2",
]
TWINS = [
    "twin:the sum of gradients (DDP):mixer:dp_replicate=2:full",
    "twin:the sum of gradients (FSDP2):feedforward:ep=2:moe",
    "twin:the sum over shares:feedforward:tp=2:dense",
    "twin:the sum of the input's gradients:feedforward:tp=2:dense",
    "twin:the number of items:mixer:dp_shard=2:full",
    "twin:statistics of the batch:feedforward:dp_replicate=2:switch",
    "twin:what is ahead in the queue:feedforward:ep=2:switch",
]
EVERY = 6  # the registry in pieces, each a test
AXES = ("dp_shard", "tp", "cp")
PAIRS = [f"registry:{mesh}=2:{i}:{EVERY}" for mesh in AXES for i in range(EVERY)]
PAIRS += [f"feedforward:{mesh}=2:{name}" for mesh in ("dp_replicate", "dp_shard") for name in FEEDS]
PAIRS += [f"feedforward:tp=2:{name}" for name in FEEDS if name != "gate"]
PAIRS += [f"feedforward:ep=2:{name}" for name in ("moe", "switch", "gshard")]
PAIRS += [f"rounding:{mesh}=2:bfloat16" for mesh in ("dp_replicate", *AXES)]
PAIRS += [f"compiled:{mesh}=2:full" for mesh in ("dp_replicate", "dp_shard", "tp")]
PAIRS += ["compiled:cp=2:full:causal"]
PAIRS += ["rounding:dp_replicate=2:float32", "rounding:ep=2:float32:full:moe"]
PAIRS += [f"feedforward:cp=2:{name}" for name in ("glu", "chunked", "sparse", "moe")]
FOURS = [
    "mixer:dp_shard=2,tp=2:full",
    "mixer:dp_shard=2,tp=2:blockbert",
    "mixer:dp_replicate=2,tp=2:routing",
    "mixer:dp_replicate=2,dp_shard=2:etc",
    "mixer:dp_shard=2,tp=2:bp_transformer:causal",
    "feedforward:dp_shard=2,ep=2:switch",
    "feedforward:dp_replicate=2,ep=2:gshard",
    "feedforward:ep=4:moe",
    "feedforward:ep=2,tp=2:moe",
    *[f"registry:cp=2,{other}=2:{i}:{EVERY}" for other in ("tp", "dp_shard") for i in range(EVERY)],
    "mixer:cp=2,dp_replicate=2:routing:causal",
    "feedforward:cp=2,tp=2:glu",
    "feedforward:cp=2,ep=2:moe",
    "feedforward:tp=4:glu",
    "parts:ep=2,dp_shard=2:switch",
    "memory:dp_shard=2,tp=2",
    "early:dp_replicate=2,cp=2",
    "memory:dp_shard=4",
    "activations:cp=4:full",
    "activations:cp=4:linear_transformer",
    "activations:dp_shard=2,cp=2:sliding_window(window=9)",
    "activations:dp_shard=2,tp=2:full",
    "refuses:tp=4:feedforward:dense(hidden=6):hidden=6 is not a multiple of tp=4",
]


@cache
def world(ranks: int, checks: tuple[str, ...]) -> dict[str, str | None]:
    """What the checks say, each in the same processes."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(ranks), *checks], capture_output=True, text=True
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = {line["check"]: line["error"] for line in lines}
    missing = dict.fromkeys(set(checks) - set(found), done.stderr[-2000:] or "it did not run")
    return {**found, **missing}


def passes(ranks: int, checks: list[str], check: str) -> None:
    error = world(ranks, tuple(checks))[check]
    assert error is None, error


@pytest.mark.parametrize("check", [*SHORT, *TWINS])
def test_two_processes(check):
    passes(2, [*SHORT, *TWINS], check)


@pytest.mark.long
@pytest.mark.parametrize("check", PAIRS)
def test_the_whole_registry(check):
    passes(2, PAIRS, check)


@pytest.mark.long
@pytest.mark.parametrize("check", FOURS)
def test_four_processes(check):
    passes(4, FOURS, check)


def test_every_exchange_is_left_out_once():
    assert {name.split(":")[1] for name in TWINS} == set(BROKEN)


def test_the_registry_is_in_the_pieces():
    assert sum(len(list(MIXERS)[i::EVERY]) for i in range(EVERY)) == len(MIXERS)
