"""The contract over the whole registry: each mixer, variant and check that traits allow."""

import pytest
import torch

from weft.mixers import MIXERS
from weft.testing import CHECKS, checks_for, exempt, variants

# These take seconds: the first variant of a mechanism always, the others in the long run.
SLOW = {"compile", "long_sequences"}
FIRST = {name: variants(MIXERS[name])[0] for name in MIXERS}
CONFIGS = [config for name in MIXERS for config in variants(MIXERS[name])]


def is_slow(config, name):
    return name in SLOW and config != FIRST[config.name]


def case(config, name, check):
    marks = [pytest.mark.long] if is_slow(config, name) else []
    return pytest.param(check, id=f"{config}-{name}", marks=marks)


# Shape comments are checked over all files of weft at once, in test_shapes.py.
CASES = [
    case(config, name, check)
    for config in CONFIGS
    for name, check in checks_for(config)
    if name != "shapes"
]


@pytest.mark.parametrize("check", CASES)
def test_contract(check):
    check()


# The sizes that papers give and users get. Long sequences cross their blocks and windows.
DEFAULTS = [MIXERS[name]() for name in MIXERS]


@pytest.mark.parametrize("config", DEFAULTS, ids=str)
def test_default_sizes_at_every_scale(config):
    # A recurrence with weights this large is chaotic: rounding grows from step to step.
    CHECKS["scale"](config, length=37 if config.traits.family == "recurrence" else 150)


@pytest.mark.long
@pytest.mark.parametrize("config", DEFAULTS, ids=str)
def test_default_sizes_on_long_sequences(config):
    CHECKS["long_sequences"](config, length=1100)


ON_DEVICE = [
    case(config, name, check)
    for config in CONFIGS
    for name, check in checks_for(config)
    if name not in ("round_trip", "shapes") and not is_slow(config, name)
]


@pytest.mark.gpu
@pytest.mark.parametrize("check", ON_DEVICE)
def test_contract_on_cuda(check):
    check(device="cuda")


@pytest.mark.long
@pytest.mark.parametrize("config", [c for c in CONFIGS if "compile" not in exempt(c)], ids=str)
def test_compiled_with_its_gradient(config):
    CHECKS["compile"](config, backend="aot_eager")


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_exemption_has_a_reason(config):
    left_out = exempt(config)
    assert set(left_out) <= set(CHECKS)
    assert all(config.name in reason for reason in left_out.values())
    assert {name for name, _ in checks_for(config)} | set(left_out) == set(CHECKS)


def test_the_registry_is_not_empty():
    assert len(MIXERS) > 0
    assert torch.is_grad_enabled(), "a check left gradients off"
