"""The runner of GPU tests: what it collects, and that no failure is lost. Needs no GPU."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / "gpu" / "check.py"
# Stands for a process that runs calls: case 1 fails, case 2 dies, case 3 takes for ever.
WORKER = """
import json, os, sys, time
for line in sys.stdin:
    number = json.loads(line)[2]
    if number == 2: os._exit(1)
    if number == 3: time.sleep(600)
    problem = "AssertionError: no" if number == 1 else ""
    print(json.dumps({"problem": problem, "seconds": 0.0, "given": ""}), flush=True)
"""


@pytest.fixture
def check():
    spec = importlib.util.spec_from_file_location("gpu_check", PATH)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def fake(check, monkeypatch):
    def started():
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return subprocess.Popen([sys.executable, "-c", WORKER], text=True, **pipes)

    monkeypatch.setattr(check, "started", started)
    return check


def calls(*numbers):
    return [("test_a", "test_b", number) for number in numbers]


@pytest.mark.parametrize(
    ("numbers", "wrong"), [((0, 0, 0), 0), ((0, 1, 0), 1), ((2, 0, 1, 0), 2), ((), 0)]
)
@pytest.mark.parametrize("jobs", [1, 3])
def test_every_failure_counts(fake, numbers, wrong, jobs, capsys):
    assert fake.run(calls(*numbers), jobs, minutes=2) == wrong
    ends = capsys.readouterr().out.splitlines()[-1]
    assert ends == f"{len(numbers) - wrong} passed, {wrong} failed, 0 not run"


def test_what_the_limit_leaves_out_did_not_pass(fake, capsys):
    assert fake.run(calls(3, 0, 4), 1, minutes=0.01) == 3
    shown = capsys.readouterr().out
    assert "NOT RUN  test_a::test_b, case 4" in shown
    assert shown.endswith("0 passed, 1 failed, 2 not run\n")


@pytest.mark.parametrize("own", [pytest, None], ids=["pytest", "stand-in"])
def test_marks_make_cases(check, own):
    mark = (own or check.stand_in()).mark.parametrize

    @mark("a", [1, 2])
    @mark(("b", "c"), [(3, 4), (5, 6)], ids=str)
    def test(a, b, c):
        """Nothing."""

    found = check.cases(test)
    assert len(found) == 4
    assert {(one["a"], one["b"], one["c"]) for one in found} == {
        (1, 3, 4),
        (1, 5, 6),
        (2, 3, 4),
        (2, 5, 6),
    }
    assert check.cases(lambda: None) == [{}]


def test_the_stand_in_notices_a_missing_error(check):
    raises = check.stand_in().raises
    with raises(ValueError):
        raise ValueError("a")
    with pytest.raises(AssertionError, match="was not raised"), raises(ValueError):
        json.dumps(1)


def test_what_the_recorded_updates_train_is_built_without_a_gpu(check):
    check.prepare()
    made = importlib.import_module("test_cuda_graphs_gpu").learner(
        "linear_transformer", device="cpu"
    )
    made.step(made.stage.source.batch(0), 0, 0)
    assert made.health.first_bad_step() is None
