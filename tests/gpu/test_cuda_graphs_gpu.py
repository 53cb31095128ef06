"""Recorded and compiled updates learn what plain ones learn.

python tests/gpu/test_cuda_graphs_gpu.py        works without pytest, too
"""

import dataclasses

import numpy as np
import pytest
import torch
from gpu_checks import attempt

from weft.arena.data.examples import Examples, TokenRows
from weft.arena.experiment.model import Model
from weft.arena.experiment.runs import own_objective
from weft.config import changed
from weft.training import Shuffled, Stage, TrainingSettings
from weft.training.learner import Learner

pytestmark = pytest.mark.gpu
MIXED = (
    "full",
    "longformer(window=33)",
    "bigbird(block=16)",
    "linformer(rank=16)",
    "reformer(chunk=32)",
    "linear_transformer",
    "pattern(reads='sliding(40)')",
)


@dataclasses.dataclass
class Tiny:
    """A task of random bytes."""

    kind, metric, vocab, classes, length = "classify", "accuracy", 256, 3, 300


def learner(
    mixer: str, dropout: float = 0.0, trimmed: bool = False, device: str = "cuda", **settings
) -> Learner:
    rng = np.random.default_rng(0)
    rows = TokenRows.of(
        [rng.integers(0, 256, rng.integers(100, 300), dtype=np.uint8) for _ in range(64)]
    )
    examples = Examples(rows, 300, labels=rng.integers(0, 3, 64), fixed=True)
    task = Tiny()
    given = {"layers": 2, "dim": 64, "heads": 2, "registers": 1, "mixer": mixer}
    head = {"classes": 3, "pool": "first", "trimmed": trimmed}
    setting = changed(Model(), {**given, "frame": {"dropout": dropout}, "head": head})
    model = own_objective(task).build(*setting.bound(task))
    made = TrainingSettings(batch=16, lr=1e-3, precision="bfloat16", warmup=2, **settings)
    stage = Stage(
        model=model, objective=own_objective(task), source=Shuffled(examples, 16), settings=made
    )
    return Learner(stage, 0, torch.device(device))


def weights(mixer: str, steps: int = 9, widths: int | None = None, **settings) -> torch.Tensor:
    one = learner(mixer, **settings)
    for number in range(steps):
        batch = one.stage.source.batch(number)
        batch = batch if widths is None else batch.by_length(widths)
        one.step(batch.to("cuda"), number, number)
    torch.cuda.synchronize()
    assert one.health.first_bad_step() is None
    return torch.cat([p.detach().flatten() for p in one.model.parameters()])


@pytest.mark.parametrize("mixer", MIXED)
def test_recorded_updates_learn_the_same(mixer):
    plain, recorded = weights(mixer), weights(mixer, graph=True)
    moved = (plain - weights(mixer, steps=0)).norm()
    assert (plain - recorded).norm() < 0.1 * moved, ((plain - recorded).norm(), moved)


@pytest.mark.parametrize("mixer", MIXED)
@pytest.mark.parametrize("compiled", [False, True], ids=["", "compiled"])
def test_parts_of_several_lengths_learn_the_same(mixer, compiled):
    """Enough updates that every shape is recorded and replayed after others."""
    many = {"steps": 30, "accumulate": 4}
    plain = weights(mixer, **many)
    recorded = weights(mixer, widths=4, graph=True, compile=compiled, **many)
    moved = (plain - weights(mixer, steps=0)).norm()
    limit = 0.2 if compiled else 0.1  # compiled layers round otherwise
    assert (plain - recorded).norm() < limit * moved, ((plain - recorded).norm(), moved)


@pytest.mark.parametrize("mixer", MIXED)
@pytest.mark.parametrize("compiled", [False, True], ids=["", "compiled"])
def test_trimmed_heads_learn_the_same(mixer, compiled):
    many = {"steps": 30, "accumulate": 4}
    whole = weights(mixer, **many)
    trimmed = weights(mixer, widths=4, trimmed=True, graph=True, compile=compiled, **many)
    moved = (whole - weights(mixer, steps=0)).norm()
    limit = 0.2 if compiled else 0.1  # compiled layers round otherwise
    assert (whole - trimmed).norm() < limit * moved, ((whole - trimmed).norm(), moved)


@pytest.mark.parametrize("mixer", MIXED)
def test_compiled_layers_learn_the_same(mixer):
    plain, compiled = weights(mixer), weights(mixer, compile=True)
    moved = (plain - weights(mixer, steps=0)).norm()
    assert (plain - compiled).norm() < 0.2 * moved, ((plain - compiled).norm(), moved)


def test_replays_draw_dropout_anew():
    one = learner("longformer(window=33)", dropout=0.5, graph=True)
    batch, seen = one.stage.source.batch(0).to("cuda"), set()
    for number in range(12):
        before = one.window[0].item()
        one.settings = dataclasses.replace(one.settings, lr=1e-12)
        one.step(batch, number, number)
        seen.add(round(one.window[0].item() - before, 6))
    assert len(seen) > 8, seen


if __name__ == "__main__":
    calls = [(test_parts_of_several_lengths_learn_the_same, (name, False)) for name in MIXED]
    calls += [(test_trimmed_heads_learn_the_same, (name, False)) for name in MIXED]
    calls += [(test_replays_draw_dropout_anew, ())]
    calls += [(test_parts_of_several_lengths_learn_the_same, (name, True)) for name in MIXED]
    calls += [(test_trimmed_heads_learn_the_same, (name, True)) for name in MIXED]
    calls += [(test_recorded_updates_learn_the_same, (name,)) for name in MIXED]
    calls += [(test_compiled_layers_learn_the_same, (name,)) for name in MIXED]
    for check, args in calls:
        print(attempt(check, args), flush=True)
