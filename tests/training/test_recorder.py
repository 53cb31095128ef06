"""Compiled layers and recorded updates: what can be checked without a GPU."""

import dataclasses

import pytest
import torch
from tiny_runs import settings, stage, trunk
from torch import nn

from weft.errors import WeftError
from weft.models.sublayer import Sublayer
from weft.training.learner import Learner
from weft.training.recorder import Recorder, compile_layers

CPU = torch.device("cpu")


class Stream:
    """Stands for a CUDA stream."""

    def wait_stream(self, other):
        """Nothing to wait for."""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False


class Graph:
    """A CUDA graph that runs what was recorded, as a replay would."""

    def __init__(self):
        self.recorded, self.replays = None, 0

    def register_generator_state(self, generator):
        self.generator = generator

    def replay(self):
        self.replays += 1
        self.recorded()


@pytest.fixture
def graphs(monkeypatch):
    """Recording without a GPU: what is called inside the context is called at every replay."""
    made = []

    def graph():
        made.append(Graph())
        return made[-1]

    class Recording:
        def __init__(self, graph, stream):
            self.graph = graph

        def __enter__(self):
            learner, learn = made[-1].learner, Learner.learn
            monkeypatch.setattr(
                Learner,
                "learn",
                lambda one, batch, steps: setattr(
                    self.graph, "recorded", lambda: learn(learner, batch, steps)
                ),
            )
            self.learn = learn

        def __exit__(self, *error):
            monkeypatch.setattr(Learner, "learn", self.learn)

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", graph)
    monkeypatch.setattr(torch.cuda, "graph", Recording)
    return made


def recording(**changes):
    """A learner on the CPU that believes it records."""
    one = Learner(stage(valid=False, **changes), 0, CPU)
    one.recorder = Recorder(one)
    register = Graph.register_generator_state

    def register_and_know(graph, generator):
        register(graph, generator)
        graph.learner = one

    Graph.register_generator_state = register_and_know
    return one


def test_recorded_updates_are_plain_updates(graphs):
    data = stage(shape=trunk(dropout=0.0)).source
    fixed = dataclasses.replace(data, rows=dataclasses.replace(data.rows, fixed=True))
    one, other = (
        recording(shape=trunk(dropout=0.0), source=fixed),
        Learner(stage(shape=trunk(dropout=0.0), source=fixed, valid=False), 0, CPU),
    )
    for number in range(7):
        for each in (one, other):
            each.step(fixed.batch(number), number, number)
    assert [graph.replays for graph in graphs] == [4]
    for (name, a), b in zip(one.model.named_parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_recorded_updates_skip_other_layers_each_time(graphs):
    """LayerDrop: the coins of an update are drawn before its replay."""
    shape = trunk(dropout=0.0, order="sf" * 3, depth="layer_drop(rate=0.5)")
    data = stage(shape=shape).source
    fixed = dataclasses.replace(data, rows=dataclasses.replace(data.rows, fixed=True))
    one = recording(shape=shape, source=fixed)
    other = Learner(stage(shape=shape, source=fixed, valid=False), 0, CPU)
    seen = set()
    for number in range(7):
        for each in (one, other):
            each.step(fixed.batch(number), number, number)
        seen.add(tuple(one.drawing[0].coins.tolist()))
    assert len(seen) > 2
    for (name, a), b in zip(one.model.named_parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_a_batch_of_another_shape_is_refused(graphs):
    one = recording(shape=trunk(dropout=0.0))
    batches = [one.stage.source.batch(number) for number in range(12)]
    wide = max(batches, key=lambda batch: batch.x.shape[1])
    for number in range(4):
        one.step(wide, number, number)
    with pytest.raises(WeftError, match=r"one shape; got .* Pad every batch"):
        one.step(wide.part(0, 2), 4, 4)


def test_a_mixer_that_changes_between_updates_is_refused(graphs):
    shape = trunk(mixer="performer(redraw_every=10)", dropout=0.0)
    with pytest.raises(WeftError, match="performer changes between updates"):
        Recorder(Learner(stage(shape=shape, valid=False), 0, CPU))


def test_float16_is_not_recorded():
    with pytest.raises(WeftError, match="bfloat16"):
        settings(graph=True, precision="float16")


def test_every_sublayer_is_compiled_and_limits_are_loud(monkeypatch):
    seen = []
    monkeypatch.setattr(nn.Module, "compile", lambda module, **kw: seen.append((module, kw)))
    model = stage().model.build()
    with torch._dynamo.config.patch(recompile_limit=8, fail_on_recompile_limit_hit=False):
        compile_layers(model)
        assert torch._dynamo.config.fail_on_recompile_limit_hit
        assert torch._dynamo.config.recompile_limit > 8
    layers = [module for module in model.modules() if isinstance(module, Sublayer)]
    assert [module for module, _ in seen] == layers
    assert len(layers) == 2
