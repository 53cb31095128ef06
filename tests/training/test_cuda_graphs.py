"""Compiled layers and recorded updates: what can be checked without a GPU."""

import dataclasses
from contextlib import contextmanager

import pytest
import torch
from tiny_runs import settings, stage, trunk
from torch import nn
from torch._dynamo.testing import CompileCounter

from weft.errors import WeftError
from weft.kernels.device_cache import device_cache
from weft.mixers import MIXERS, Frame
from weft.models.stack.sublayer import Sublayer
from weft.objectives import CausalLM, Classify
from weft.training import Progress, Run
from weft.training import cuda_graphs as recorder
from weft.training.checkpoints.run_folder import RunFolder
from weft.training.cuda_graphs import WARM_UP, CudaGraphs, compile_layers
from weft.training.interrupt import Interrupt
from weft.training.learner import Learner
from weft.training.loop import Trainer

CPU = torch.device("cpu")
OUTSIDE = (  # mixers that ask `torch.compiler.is_compiling` before they take kernels of their own
    *("brc", "dynamic_convolution", "gru", "light_convolution", "lstm", "nsa", "nystromformer"),
    *("reformer", "routing", "sinkhorn", "sru"),
)


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

    def __init__(self, call=None):
        self.recorded, self.replays, self.generators = call, 0, []

    def register_generator_state(self, generator):
        self.generators.append(generator)

    def replay(self):
        self.replays += 1
        self.recorded()


@pytest.fixture
def cuda(monkeypatch):
    """Streams and memory of a GPU that is not there."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "memory")


@pytest.fixture
def graphs(cuda, monkeypatch):
    """Recording without a GPU: what is recorded is called at every replay, and not before."""
    made = []

    def record(recorder, call):
        made.append(Graph(call))
        return made[-1]

    monkeypatch.setattr(CudaGraphs, "record", record)
    return made


def recording(**changes):
    """A learner on the CPU that believes it records."""
    one = Learner(stage(valid=False, **changes), 0, CPU)
    one.recorder = CudaGraphs(one)
    return one


def padded(**changes):
    """Batches of one width."""
    data = stage(**changes).source
    return dataclasses.replace(data, rows=dataclasses.replace(data.rows, fixed=True))


def differences(one, other):
    pairs = zip(one.model.named_parameters(), other.model.parameters(), strict=True)
    return [name for (name, a), b in pairs if not torch.equal(a, b)]


def test_recorded_updates_are_plain_updates(graphs):
    shape = trunk(dropout=0.0)
    fixed = padded(shape=shape)
    one = recording(shape=shape, source=fixed)
    other = Learner(stage(shape=shape, source=fixed, valid=False), 0, CPU)
    for number in range(7):
        for each in (one, other):
            each.step(fixed.batch(number), number, number)
    assert [graph.replays for graph in graphs] == [4, 4]  # the only part, and the end
    assert differences(one, other) == []


def by_width(number, source, widths=3):
    return source.batch(number).by_length(widths)


@pytest.mark.parametrize("objective", [Classify(), CausalLM()], ids=["rows", "tokens"])
def test_parts_are_recorded_by_their_shape(graphs, objective):
    """Each shape is seen once before it is recorded; the first part of an update is another."""
    shape = trunk(dropout=0.0)
    fixed = padded(objective=objective, shape=shape)
    run = {"objective": objective, "shape": shape, "source": fixed, "accumulate": 2}
    one, other = recording(**run), Learner(stage(valid=False, **run), 0, CPU)
    shapes = {}
    for number in range(12):
        batch = by_width(number, fixed)
        for place, part in enumerate(batch.parts(2)):
            shapes.setdefault((place, part.x.shape), []).append(number)
        for each in (one, other):
            each.step(batch, number, number)
    assert differences(one, other) == []
    assert len(shapes) > 3, "batches of one shape show nothing"
    plain = {key: sum(1 for n in at if n < WARM_UP) or 1 for key, at in shapes.items()}
    replays = sorted(len(at) - plain[key] for key, at in shapes.items() if len(at) > plain[key])
    *parts, end = sorted(graph.replays for graph in graphs)
    assert (parts, end) == (replays, 12 - WARM_UP)


@pytest.mark.parametrize("broken", ["first", "gradients"])
def test_twins_that_forget_are_found(graphs, monkeypatch, broken):
    """Sums or gradients that go on from the update before: the weights differ."""
    fixed = padded(shape=trunk(dropout=0.0))
    run = {"shape": trunk(dropout=0.0), "source": fixed, "accumulate": 2}
    one, other = recording(**run), Learner(stage(valid=False, **run), 0, CPU)
    if broken == "first":
        true = one.micro_step
        one.micro_step = lambda batch, first: true(batch, first=first and one.recorder.seen < 3)
    for number in range(8):
        for each in (one, other):
            each.step(by_width(number, fixed), number, number)
            if broken == "gradients" and each is one and one.recorder.seen == WARM_UP:
                next(each.model.parameters()).grad.fill_(0.1)
    assert differences(one, other)


def test_a_gradient_that_comes_later_is_refused(graphs):
    """The end of an update is recorded with the gradients that there are then."""
    one = recording(shape=trunk(dropout=0.0))
    one.model.late = nn.Parameter(torch.ones(2))
    batch, true = padded().batch(0), one.micro_step
    for number in range(WARM_UP + 1):
        one.step(batch, number, number)

    def with_another(part, *, first):
        true(part, first=first)
        one.model.late.grad = torch.ones(2)

    one.micro_step = with_another
    with pytest.raises(WeftError, match="late had no gradient in the first 3 updates"):
        one.step(batch.part(0, 2), 4, 4)


def test_what_recordings_read_is_held(cuda, monkeypatch):
    """A cache may forget it: the graph would read from memory that is someone else's by then."""
    seen = {}

    @contextmanager
    def recorded(graph, *, pool, stream, capture_error_mode):
        # Another thread may ask for pinned memory meanwhile, which must not end the recording.
        assert capture_error_mode == "thread_local"
        seen.update(pool=pool, stream=stream)
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", recorded)
    one = recording()

    @device_cache(1)
    def place(number):
        return torch.full((2,), number)

    before = place(0)
    graph = one.recorder.record(lambda: place(1))
    assert [t.tolist() for t in one.recorder.held.values()] == [[1, 1]]
    assert seen == {"pool": "memory", "stream": one.recorder.stream}
    assert graph.generators == [one.generator]
    place(2)
    assert len(one.recorder.held) == 1
    assert place(0) is not before, "a cache of one forgets"


def test_recorded_updates_skip_other_layers_each_time(graphs):
    """LayerDrop: the coins of an update are drawn before its replay."""
    shape = trunk(dropout=0.0, order="sf" * 3, depth="layer_drop(rate=0.5)")
    fixed = padded(shape=shape)
    one = recording(shape=shape, source=fixed)
    other = Learner(stage(shape=shape, source=fixed, valid=False), 0, CPU)
    seen = set()
    for number in range(7):
        for each in (one, other):
            each.step(fixed.batch(number), number, number)
        seen.add(tuple(one.drawing[0].coins.tolist()))
    assert len(seen) > 2
    assert differences(one, other) == []


def test_too_many_shapes_are_refused(graphs, monkeypatch):
    monkeypatch.setattr(recorder, "_SHAPES", 2)
    one = recording(shape=trunk(dropout=0.0))
    batch = padded().batch(0)
    one.step(batch, 0, 0)
    one.step(batch.part(0, 2), 1, 1)
    with pytest.raises(WeftError, match=r"at most 2 shapes .* Pad batches to fewer lengths"):
        one.step(batch.part(0, 3), 2, 2)


def test_a_mixer_that_changes_between_updates_is_refused(graphs):
    shape = trunk(mixer="performer(redraw_every=10)", dropout=0.0)
    with pytest.raises(WeftError, match="performer changes between updates"):
        CudaGraphs(Learner(stage(shape=shape, valid=False), 0, CPU))


@pytest.mark.parametrize(("changes", "widths"), [({"graph": True}, 16), ({"accumulate": 2}, None)])
def test_batches_come_in_few_widths_where_updates_are_recorded(tmp_path, changes, widths):
    run = Run(stages=(stage(**changes),))
    made = Trainer(run, RunFolder(tmp_path), Progress(), CPU, Interrupt())
    assert (made.feed.by_length, made.feed.widths) == (True, widths)


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


@pytest.fixture
def counted(monkeypatch):
    """Graphs of dynamo alone, counted; what is compiled runs as it is."""
    counter, true = CompileCounter(), nn.Module.compile
    monkeypatch.setattr(
        nn.Module, "compile", lambda module, **kw: true(module, backend=counter, **kw)
    )
    with torch._dynamo.config.patch(recompile_limit=8, fail_on_recompile_limit_hit=False):
        yield counter
    torch.compiler.reset()


# Dynamo looks at the gradients of what it traces, also where there are none.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_second_shape_makes_a_graph_for_all(counted):
    fixed = padded(shape=trunk(dropout=0.0))
    run = {"shape": trunk(dropout=0.0), "source": fixed, "accumulate": 2, "compile": True}
    one = Learner(stage(valid=False, **run), 0, CPU)
    widths = set()
    for number in range(12):
        batch = fixed.batch(number).by_length()
        widths |= {part.x.shape[1] for part in batch.parts(2)}
        one.step(batch, number, number)
    each = 2 * len(widths)  # a graph for each width of each of two sublayers
    assert counted.frame_count <= 8 < each, (counted.frame_count, each)


@pytest.mark.parametrize("name", sorted(MIXERS))
def test_mixers_with_kernels_of_their_own_run_between_graphs_on_a_gpu(name, monkeypatch):
    """Those that say so, and no others."""
    monkeypatch.setattr(recorder, "_on_a_gpu", lambda module: True)
    config = MIXERS[name].small() if hasattr(MIXERS[name], "small") else MIXERS[name]()
    causal = not config.traits.bidirectional
    mixer = config.build(Frame(dim=16, heads=2, length=64, causal=causal))
    with torch._dynamo.config.patch(recompile_limit=8, fail_on_recompile_limit_hit=False):
        compile_layers(nn.ModuleList([mixer]))
    assert ("forward" in vars(mixer)) == mixer.outside_graphs == (name in OUTSIDE)


class Disturbed:
    """Recordings of which the first ones are given up by the driver."""

    def __init__(self, failures, monkeypatch, message="CUDA error: capture was invalidated"):
        self.left, self.calls = failures, 0

        def recorded(recorder, call):
            self.calls += 1
            if self.left:
                self.left -= 1
                raise RuntimeError(message)
            return Graph(call)

        monkeypatch.setattr(CudaGraphs, "recorded", recorded)


def learnt(one, source, steps=7):
    for number in range(steps):
        one.step(source.batch(number), number, number)
    return one


@pytest.mark.parametrize("failures", [1, 2])
def test_a_recording_that_was_disturbed_is_tried_again(cuda, monkeypatch, failures):
    shape = trunk(dropout=0.0)
    fixed = padded(shape=shape)
    disturbed = Disturbed(failures, monkeypatch)
    one = learnt(recording(shape=shape, source=fixed), fixed)
    other = learnt(Learner(stage(shape=shape, source=fixed, valid=False), 0, CPU), fixed)
    assert disturbed.calls == 2 + failures
    assert not one.recorder.gave_up
    assert differences(one, other) == []


@pytest.mark.parametrize("failures", [3, 100])
def test_updates_go_on_one_by_one_where_none_can_be_recorded(cuda, monkeypatch, failures):
    shape = trunk(dropout=0.0)
    fixed = padded(shape=shape)
    disturbed = Disturbed(failures, monkeypatch)
    with pytest.warns(UserWarning, match=r"no longer recorded: that failed 3 times \(CUDA error"):
        one = learnt(recording(shape=shape, source=fixed), fixed)
    other = learnt(Learner(stage(shape=shape, source=fixed, valid=False), 0, CPU), fixed)
    assert disturbed.calls == 3
    assert differences(one, other) == []


def test_other_errors_of_a_recorded_part_are_raised(cuda, monkeypatch):
    fixed = padded()
    Disturbed(1, monkeypatch, "CUDA out of memory")
    with pytest.raises(RuntimeError, match="out of memory"):
        learnt(recording(source=fixed), fixed)
