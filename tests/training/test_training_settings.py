"""Settings: bad ones are refused with their name, the rule and the value."""

import dataclasses

import pytest
import torch

from weft.errors import WeftError
from weft.training import TrainingSettings
from weft.training.settings import FREE, device_named

BAD = [
    ({"steps": 0}, "steps is at least 1"),
    ({"batch": 0}, "batch is at least 1"),
    ({"accumulate": 0}, "accumulate is at least 1"),
    ({"batch": 4, "accumulate": 5}, "accumulate is at most batch"),
    ({"lr": 0.0}, "lr is positive"),
    ({"lr": -1.0}, "lr is positive"),
    ({"minutes": 0.0}, "minutes is positive, or None"),
    ({"clip": 0.0}, "clip is positive, or None"),
    ({"warmup": -1}, "warmup is 0 or more"),
    ({"hold": 1.5}, "hold is a share"),
    ({"final": -0.1}, "final is a share"),
    ({"betas": (0.9, 1.0)}, "betas are two numbers"),
    ({"betas": (0.9,)}, "betas is a list of 2"),
    ({"schedule": "step"}, "schedule is one of .constant., .rsqrt., .cosine., .linear."),
    ({"precision": "int8"}, "precision is one of .float32., .bfloat16., .float16., .float64."),
    ({"decay": "some"}, "decay is one of .matrices., .all."),
    ({"keep": "first"}, "keep is one of .best., .last."),
    ({"evaluate_every": 0}, "evaluate_every is positive, or None"),
    ({"weight_decay": -0.1}, "weight_decay is 0 or more"),
]


@pytest.mark.parametrize(("given", "rule"), BAD, ids=str)
def test_bad_settings_are_refused(given, rule):
    with pytest.raises(WeftError, match=rule):
        TrainingSettings(**given)


def test_lists_from_a_file_become_tuples():
    assert TrainingSettings(betas=[0.9, 0.99]).betas == (0.9, 0.99)


def test_evaluations_come_ten_times_by_default():
    assert TrainingSettings(steps=1000).evaluation_interval == 100
    assert TrainingSettings(steps=3).evaluation_interval == 1
    assert TrainingSettings(evaluate_every=7).evaluation_interval == 7


def test_free_settings_exist():
    assert set(FREE) <= {field.name for field in dataclasses.fields(TrainingSettings)}


def test_devices():
    assert device_named("cpu") == torch.device("cpu")
    if torch.cuda.is_available():
        assert device_named("auto").type == "cuda"
    else:
        assert device_named("auto").type == "cpu"
        with pytest.raises(WeftError, match="no CUDA device"):
            device_named("cuda")
