"""Runs that take a second: what the tests of training are made of."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from weft.arena.data.examples import Examples, TokenRows
from weft.layers.embedding import Embedding
from weft.mixers import Frame, Mixer, Traits
from weft.models import Encoder, Stack
from weft.objectives import CausalLM, Classify, Head, MaskedLM
from weft.training import Ordered, Progress, Run, Shuffled, Stage, TrainingSettings

VOCAB, CLASSES, LENGTH = 7, 3, 9


def examples(rows: int = 21, seed: int = 0, length: int = LENGTH) -> Examples:
    """Ragged rows of small numbers; the class is the first token modulo the classes."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(3, length + 1, rows)
    sequences = [draw.integers(0, VOCAB, size).astype(np.uint8) for size in sizes]
    labels = np.array([int(sequence[0]) % CLASSES for sequence in sequences])
    return Examples(TokenRows.of(sequences), length, labels=labels)


def trunk(*, length=LENGTH, positions="learned", registers=0, dropout=0.1, **stack) -> Encoder:
    return Encoder(
        embedding=Embedding(vocab=VOCAB, positions=positions, registers=registers),
        stack=Stack(
            frame=Frame(dim=8, heads=2, length=length, dropout=dropout),
            dropout=dropout,
            **{"order": "sf", "mixer": "full", **stack},
        ),
    )


def settings(**changes) -> TrainingSettings:
    few = {"steps": 4, "batch": 4, "lr": 1e-2, "schedule": "constant", "device": "cpu"}
    often = {"evaluate_every": 2, "save_every": 2, "log_every": 3}
    return TrainingSettings(**{**few, **often, **changes})


def stage(objective=None, *, shape=None, data=None, valid=True, **changes) -> Stage:
    """A classifier (or what the objective asks for) on the tiny rows."""
    objective = objective or Classify()
    data = data or examples()
    chosen = settings(**{k: v for k, v in changes.items() if k not in ("source", "until")})
    return Stage(
        model=objective.build(shape or trunk(), Head(classes=CLASSES)),
        objective=objective,
        source=changes.get("source") or Shuffled(data, chosen.batch, seed=1),
        valid=Ordered(examples(rows=10, seed=2), 4) if valid else None,
        settings=chosen,
        until=changes.get("until"),
    )


def two_stages(**changes) -> Run:
    """Masked self-pretraining, then classification; dropout, a noisy mixer with a buffer, parts."""
    shape = trunk(mixer=Drifting())
    return Run(
        stages=(
            stage(MaskedLM(rate=0.5), shape=shape, accumulate=2, **changes),
            stage(shape=shape, **changes),
        )
    )


def one_stage(objective=None, **changes) -> Run:
    return Run(stages=(stage(objective or CausalLM(), **changes),))


def weights(folder: Path, kind: str = "last") -> dict[str, torch.Tensor]:
    return load_file(folder / kind / "model.safetensors")


def rows(folder: Path) -> list[dict]:
    """Metrics without what a clock says."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in found]


def assert_same_run(one: Path, two: Path) -> None:
    """Both folders hold the same run: models bit by bit, and every row of metrics once."""
    for kind in ("last", "best"):
        if not (one / kind).exists():
            assert not (two / kind).exists()
            continue
        left, right = weights(one, kind), weights(two, kind)
        assert left.keys() == right.keys()
        for name in left:
            assert torch.equal(left[name], right[name]), f"{kind}: {name} differs"
    assert rows(one) == rows(two)
    ends = [json.loads((folder / "done.json").read_text()) for folder in (one, two)]
    for name in ("steps", "phase", "tokens", "score", "best_score", "best_step", "loss"):
        assert ends[0][name] == ends[1][name], name


class Crash(RuntimeError):
    pass


class CrashAt(Progress):
    """Raises when told of the given event for the given time."""

    def __init__(self, event: str, time: int) -> None:
        self.event, self.left = event, time

    def _hear(self, event: str) -> None:
        if event == self.event:
            self.left -= 1
            if self.left == 0:
                raise Crash(event)

    def step(self, step):
        self._hear("step")

    def row(self, row):
        self._hear("row")

    def stage(self, number, note):
        self._hear("stage")


class Heard(Progress):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.steps, self.rows, self.notes, self.stages, self.outcomes = [], [], [], [], []
        self.started = None

    def start(self, run, step):
        self.started = step

    def step(self, step):
        self.steps.append(step)

    def row(self, row):
        self.rows.append(row)

    def note(self, text):
        self.notes.append(text)

    def stage(self, number, note):
        self.stages.append((number, note))

    def end(self, outcome):
        self.outcomes.append(outcome)


@dataclass(frozen=True, kw_only=True)
class Drifting:
    """Mixes by the mean, with noise from torch's own state and a buffer that training moves."""

    strength: float = 0.1

    name = "drifting"
    traits = Traits(family="test", paper="none", time="n", memory="n")

    def build(self, frame: Frame) -> DriftingMixer:
        return DriftingMixer(self, frame)


class DriftingMixer(Mixer):
    def __init__(self, config, frame) -> None:
        super().__init__(config, frame)
        self.to_out = nn.Linear(frame.dim, frame.dim)
        self.register_buffer("level", torch.ones(()))

    def mix(self, x, valid, context, context_valid):
        y = self.to_out(x.mean(1, keepdim=True).expand_as(x)) / self.level.clone()
        if self.training and self.config.strength:
            self.level.mul_(0.9).add_(0.1 * x.detach().abs().mean())
            y = y + self.config.strength * torch.randn_like(y)
        return y

    def penalty(self):
        return 0.01 * self.to_out.weight.square().sum()
