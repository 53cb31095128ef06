"""Frozen parameters stay as they are, and the others learn."""

import pytest
import torch

from weft.arena.experiment.model import Model
from weft.arena.experiment.runs import run_of
from weft.arena.experiment.settings import Experiment, modified, read_settings
from weft.config import changed
from weft.errors import WeftError
from weft.models import load
from weft.training import train
from weft.training.freeze import fits, freeze

OWN = Experiment(
    task="key_value(pairs=2, symbols=8, values=2, train=64, valid=20, test=20)",
    model=changed(Model(), {"layers": 2, "dim": 8, "heads": 2}),
    training={"steps": 3, "batch": 8, "device": "cpu", "keep": "last"},
)


def trained(folder, *frozen):
    """Names of the parameters that are others than before."""
    one = modified(OWN, {"training": {"frozen": list(frozen)}})
    train(run_of(modified(one, {"training": {"steps": 1, "lr": 1e-30}})), folder / "before")
    train(run_of(one), folder / "after")
    before, after = (load(folder / name / "last").state_dict() for name in ("before", "after"))
    return {name for name in after if not torch.equal(after[name], before[name])}


def test_what_is_frozen_stays(tmp_path):
    every = trained(tmp_path / "all")
    assert any("embedding" in name for name in every), "the check can fail"
    found = trained(tmp_path / "some", "embedding", "stack.sublayers.0.*")
    stays = {n for n in every if "embedding" in n or n.startswith("trunk.stack.sublayers.0.")}
    assert found == every - stays


@pytest.mark.parametrize(
    ("pattern", "fitting"),
    [
        ("embedding", True),
        ("trunk", True),
        ("table", True),
        ("trunk.embedding.table", True),
        ("emb*", True),
        ("embed", False),
        ("able", False),
        ("trunk.table", False),
    ],
)
def test_patterns_begin_and_end_at_dots(pattern, fitting):
    assert fits("trunk.embedding.table", pattern) == fitting


def test_a_pattern_that_fits_nothing_is_refused():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    with pytest.raises(WeftError, match=r"'weigt' fits none of the 2; did you mean 'weight'"):
        freeze(model, ["weigt"])
    with pytest.raises(WeftError, match="nothing is left to train"):
        freeze(model, ["weight", "bias"])


def test_a_phase_may_freeze(tmp_path):
    (tmp_path / "own.toml").write_text(
        'task = "reversal"\n[training]\nfrozen = ["embedding"]\n[[phase]]\n[[phase]]\nfrozen = []\n'
    )
    one = read_settings(tmp_path / "own.toml").experiment
    found = [phase.over(one.training).frozen for phase in one.phase]
    assert found == [("embedding",), ()]
