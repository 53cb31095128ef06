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


CASES = [case(config, *named) for config in CONFIGS for named in checks_for(config)]


@pytest.mark.parametrize("check", CASES)
def test_contract(check):
    check()


ON_DEVICE = [
    case(config, name, check)
    for config in CONFIGS
    for name, check in checks_for(config)
    if name != "round_trip" and not is_slow(config, name)
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
