"""What weft computes on a CPU is what was recorded, bit for bit.

Where a change is meant: `python tests/digests/compute.py --write`, and say in the commit what
differs and why. On another processor, or with another torch, roundings differ and nothing is
compared.
"""

import pytest
import torch
from compute import (
    ENVIRONMENT,
    FAMILIES,
    LONG,
    RECORDED,
    computed,
    differences,
    family,
    recorded,
)
from hashing import built, learned
from layer_cases import frame
from model_cases import left_out
from training_cases import OBJECTIVE_SPECS, UNTESTED
from weft_names import MIXERS, OBJECTIVES

from rounding import digest, environment, normal

GROUPS = [*FAMILIES, *(pytest.param(name, marks=pytest.mark.long) for name in LONG)]


@pytest.fixture(scope="module")
def known():
    """The digests of processors that round as this one."""
    found, here = recorded(), environment()
    if not found:
        pytest.skip(f"nothing is recorded where torch rounds as here: {here}")
    there = found.pop(ENVIRONMENT)
    if there != here:
        changed = [
            f"{key} {there[key]}, here {here[key]}" for key in here if there[key] != here[key]
        ]
        pytest.skip(f"recorded where roundings differ: {'; '.join(changed)}")
    return found


@pytest.mark.parametrize("name", GROUPS)
def test_nothing_changed(name, known):
    lines = differences(name, family(name), known)
    assert not lines, "\n".join([f"{len(lines)} cases of {name} changed:", *lines])


@pytest.mark.parametrize("file", sorted(RECORDED.glob("*.json")), ids=lambda file: file.stem)
def test_every_case_belongs_to_a_family(file):
    found = recorded(file)
    assert found[ENVIRONMENT]["rounding"] == file.stem
    assert {key.partition(": ")[0] for key in found} - {ENVIRONMENT} == {*FAMILIES, *LONG}


def test_no_entry_of_a_registry_is_left_out():
    assert not left_out()
    assert {OBJECTIVES.parse(spec).name for spec in OBJECTIVE_SPECS} | UNTESTED >= set(OBJECTIVES)


def ulp_case(move=False, renamed=False):
    """A mixer whose first weight is moved by one unit in the last place."""

    def case():
        mixer = built(lambda: MIXERS["full"]().build(frame(True)), 1, torch.float32, 0.1)
        if move:
            with torch.no_grad():
                first = next(mixer.parameters()).view(-1)[:1]
                first.copy_(torch.nextafter(first, first + 1))
        if renamed:
            mixer = torch.nn.ModuleDict({"inner": mixer})
        x = normal(2, 70, 32, seed=1, dtype=torch.float32).requires_grad_()
        return learned(mixer, [(mixer["inner"] if renamed else mixer)(x)], [x], 1)

    return case


def test_one_ulp_of_one_weight_changes_all_digests():
    before, after = computed(ulp_case()), computed(ulp_case(move=True))
    assert computed(ulp_case()) == before
    assert all(a != b for a, b in zip(before.split(), after.split(), strict=True))
    lines = differences("x", {"x: case": after}, {"x: case": before})
    assert lines == ["x: case: weights, output, gradients differ"]


def test_a_renamed_parameter_changes_weights_alone():
    before, after = computed(ulp_case()), computed(ulp_case(renamed=True))
    lines = differences("x", {"x: case": after}, {"x: case": before})
    assert lines == ["x: case: weights differ"]


def test_cases_that_come_and_go_are_named():
    lines = differences("x", {"x: new": "a b c"}, {"x: old": "a b c", "y: other": "a b c"})
    assert lines == ["x: new: not recorded", "x: old: gone"]


def test_digests_see_bits_shapes_and_types():
    x = torch.zeros(4)
    others = [-x, x.view(2, 2), x.int(), x.double(), x[:2]]
    assert len({digest(each) for each in (x, *others)}) == 6
    assert digest(torch.ones(3, 2).mT) == digest(torch.ones(2, 3))
