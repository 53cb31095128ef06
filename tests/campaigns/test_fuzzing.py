"""Nothing that weft reads makes it crash, hang, fill memory, or raise anything but a WeftError.

`WEFT_FUZZ_INPUTS` is the number of inputs of each target, `WEFT_FUZZ_SEED` the first seed.
"""

import os

import pytest
import sanitized
from fuzzing import TARGETS, Target, fuzz, in_child, mutated
from readers import absent

from weft import native
from weft.errors import WeftError

INPUTS = int(os.environ.get("WEFT_FUZZ_INPUTS", "5000"))
SEED = int(os.environ.get("WEFT_FUZZ_SEED", "0"))


@pytest.mark.long
@pytest.mark.parametrize("name", TARGETS)
def test_inputs_are_read_or_refused(name):
    if name.startswith("native") and native.available() is not None:
        pytest.skip(native.available())
    if name in absent():
        pytest.skip(absent()[name])
    found = in_child(name, INPUTS, SEED)
    assert found["raw"] == {}, found["examples"]
    assert found["inputs"] == INPUTS
    assert found["accepted"] > 0, "no input was valid: the target is never reached"
    assert found["refused"] > 0


@pytest.mark.long
@pytest.mark.skipif(native.available() is not None, reason="no C++ compiler")
def test_the_native_reader_is_clean_under_sanitizers():
    status, said = sanitized.run(4 * INPUTS, SEED)
    assert status == 0, said
    decoded = int(said.split(", ")[1].split()[0])
    assert 0 < decoded < 4 * INPUTS


def test_the_campaign_finds_what_is_raw():
    """A reader that is broken on purpose: by type, by time, by size."""

    def read(data):
        if b"(" in data:
            raise KeyError(data)
        raise WeftError("no")

    found = fuzz(Target([b"abc(d)"], [b"("], read), 200, seed=1)
    assert found.refused > 0
    assert [place.partition(":")[2] for place in found.raw] == ["read"]
    assert sum(found.raw.values()) + found.refused == found.inputs == 200


def test_the_same_seed_gives_the_same_inputs():
    import random

    target = Target([b"sliding(4)", b"causal"], [b"|"], lambda data: None)
    first, again = ([mutated(random.Random(5), target) for _ in range(3)] for _ in range(2))
    assert first == again
    assert mutated(random.Random(6), target) != first[0]
