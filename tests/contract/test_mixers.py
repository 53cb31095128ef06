"""The contract over the whole registry: each mixer, variant and check that traits allow."""

import pytest
import torch

from weft.mixers import MIXERS
from weft.testing import CHECKS, checks_for, exempt, variants

# These take seconds: the first variant of a mechanism always, the others in the long run.
SLOW = {"compile", "long_sequences"}
FIRST = {name: variants(MIXERS[name])[0] for name in MIXERS}
CONFIGS = [config for name in MIXERS for config in variants(MIXERS[name])]


def case(config, name, check):
    slow = name in SLOW and config != FIRST[config.name]
    return pytest.param(check, id=f"{config}-{name}", marks=[pytest.mark.long] if slow else [])


CASES = [case(config, *named) for config in CONFIGS for named in checks_for(config)]


@pytest.mark.parametrize("check", CASES)
def test_contract(check):
    check()


@pytest.mark.gpu
@pytest.mark.parametrize("check", [one for one in CASES if "round_trip" not in one.id])
def test_contract_on_cuda(check):
    check(device="cuda")


@pytest.mark.long
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_compiled_training(config):
    if reason := exempt(config).get("compile"):
        pytest.skip(reason)
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
