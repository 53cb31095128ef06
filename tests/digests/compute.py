"""Digests of what weft computes on a CPU, bit for bit: layers, models, decoding, training.

    python tests/digests/compute.py                 compare with what was recorded
    python tests/digests/compute.py --write         record them, after a change that is meant

Processors round differently: recorded/ holds a file for each way of rounding (`tests/rounding.py`).

A case has up to three digests, separated by spaces:

    weights     names and values of the initial parameters and buffers (trainings: the final ones)
    output      forward passes, losses, decoded rows, or rows of metrics
    gradients   of inputs, then of parameters in the order of `named_parameters`, without names

So where a parameter is only renamed, `weights` alone differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

# oneDNN picks its kernels when torch is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
sys.path.append(str(Path(__file__).parents[1]))  # of `rounding`, where pytest does not do it

import torch
from hashing import Case, Named
from layer_cases import attention, decoding, feedforwards, framed_mixers, long_mixers, mixers
from model_cases import generation, models
from training_cases import objectives, trainings

from rounding import digest, environment

RECORDED = Path(__file__).parent / "recorded"
ENVIRONMENT = "environment"  # the entry of a file that names no case
KINDS = ("weights", "output", "gradients")

FAMILIES: dict[str, Callable[[], Named]] = {
    "mixers float32": partial(mixers, "float32"),
    "mixers float64": partial(mixers, "float64"),
    "mixers bfloat16": partial(mixers, "bfloat16"),
    "framed mixers": framed_mixers,
    "decoding": decoding,
    "attention": attention,
    "feedforwards": feedforwards,
    "models float32": partial(models, "float32"),
    "models float64": partial(models, "float64"),
    "generation": generation,
    "objectives": objectives,
    "training": trainings,
}
LONG: dict[str, Callable[[], Named]] = {"long mixers": long_mixers}


def computed(case: Case) -> str:
    """The digests of a case, with one thread and without touching torch's random state."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            found = case()
    finally:
        torch.set_num_threads(threads)
    return " ".join(digest(*found[kind]) if kind in found else "-" for kind in KINDS)


def family(name: str, order: random.Random | None = None) -> dict[str, str]:
    """All digests of a family by `family: case`; computed in a random order if one is given."""
    cases = list({**FAMILIES, **LONG}[name]())
    if order is not None:
        order.shuffle(cases)
    found: dict[str, str] = {}
    for label, case in cases:
        key = f"{name}: {label}"
        assert key not in found, f"two cases are named {key!r}"
        found[key] = computed(case)
    return found


def place() -> Path:
    """The file for processors that round as this one."""
    return RECORDED / f"{environment()['rounding']}.json"


def recorded(file: Path | None = None) -> dict:
    """What a file holds, by default that of this processor; nothing where there is none."""
    file = file or place()
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def differences(name: str, found: dict[str, str], known: dict) -> list[str]:
    """What does not agree in a family, one line for each case."""
    own = {key: value for key, value in known.items() if key.startswith(f"{name}: ")}
    lines = [f"{key}: gone" for key in own if key not in found]
    lines += [f"{key}: not recorded" for key in found if key not in own]
    for key in found.keys() & own.keys():
        pairs = zip(KINDS, found[key].split(), own[key].split(), strict=True)
        kinds = [kind for kind, new, old in pairs if new != old]
        lines += [f"{key}: {', '.join(kinds)} differ"] if kinds else []
    return sorted(lines)


def main() -> int:
    """Compare or record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="record instead of comparing")
    parser.add_argument("--shuffle", type=int, help="seed of another order of cases")
    parser.add_argument("--only", action="append", help="a family; may be repeated")
    given = parser.parse_args()
    known, here = recorded(), environment()
    if not given.write and known.get(ENVIRONMENT) != here:
        print(f"recorded in another environment: {known.get(ENVIRONMENT)}, here {here}")
    order = None if given.shuffle is None else random.Random(given.shuffle)
    names, wrong, total = given.only or [*FAMILIES, *LONG], [], 0
    if order is not None:
        order.shuffle(names)
    for name in names:
        began = time.perf_counter()
        found = family(name, order)
        lines = differences(name, found, known)
        took = time.perf_counter() - began
        print(f"{name}: {len(found)} cases, {took:.1f} s, {len(lines)} differ", flush=True)
        known = {k: v for k, v in known.items() if not k.startswith(f"{name}: ")} | found
        wrong, total = wrong + lines, total + len(found)
    if given.write:
        known.pop(ENVIRONMENT, None)
        sorted_cases = {key: known[key] for key in sorted(known)}
        RECORDED.mkdir(exist_ok=True)
        place().write_text(json.dumps({ENVIRONMENT: here, **sorted_cases}, indent=0) + "\n")
        print(f"{total} cases recorded")
        return 0
    print("\n".join([*wrong, f"{total} cases, {len(wrong)} differ"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
