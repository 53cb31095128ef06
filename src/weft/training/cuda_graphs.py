"""Less Python between kernels: layers compiled to graphs, and whole updates recorded and replayed.

A small model on a GPU waits for Python, which starts its kernels one by one. `torch.compile` fuses
the kernels of a layer; layers that are alike share one compiled graph. A CUDA graph goes further:
what an update does, from the embedding to the optimiser, is recorded once and then replayed. Both
compute what the loop computes step by step.

An update is its parts and its end. Parts are recorded by their shape, so that rows of like length
stay together and little of what is computed is padding; all recordings share their memory, as one
runs after another. What lasts from part to part is made before, outside of them: the batches, the
gradients, and the sums that the learner keeps.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from weft.errors import WeftError
from weft.kernels.device_cache import holding
from weft.mixers.base import Mixer
from weft.models.stack.sublayer import Sublayer
from weft.objectives import Batch

if TYPE_CHECKING:
    from weft.training.learner import Learner

WARM_UP = 3  # updates before any recording: kernels are chosen, the optimiser's memory is made
_GRAPHS = 64  # per layer: shapes, train and evaluation, settings that differ by layer
_TRIES = 3  # to record: the driver gives up a recording when other processes disturb it
_SHAPES = 64  # of parts that are recorded
RECORDED_WIDTHS = 16  # of the parts of padded batches

Shape = tuple[Any, ...]  # whether a part is the first of its update, names and shapes of tensors


class RecordedPart(NamedTuple):
    """A recorded part, and the batch that it reads from."""

    batch: Batch
    graph: torch.cuda.CUDAGraph


def compile_layers(model: nn.Module) -> None:
    """Compile every sublayer. Graphs of earlier models are forgotten.

    A second shape makes a graph for all shapes. Mixers whose kernels cannot be in one run between
    graphs on a GPU. Past its limit of graphs dynamo would go on uncompiled, silently; here it
    raises instead.
    """
    torch.compiler.reset()
    torch._dynamo.config.recompile_limit = _GRAPHS
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    for module in model.modules():
        if isinstance(module, Mixer) and module.outside_graphs and _on_a_gpu(module):
            module.__dict__["forward"] = torch.compiler.disable(module.forward)
        if isinstance(module, Sublayer):
            module.compile()


def _on_a_gpu(module: nn.Module) -> bool:
    return any(tensor.is_cuda for tensor in (*module.parameters(), *module.buffers()))


class CudaGraphs:
    """Records the parts of a learner's updates and their end, and replays them."""

    def __init__(self, learner: Learner) -> None:
        for mixer in learner.mixers:
            if mixer.changes:
                raise WeftError(
                    f"{mixer.config.name} changes between updates, and a recorded update cannot; "
                    "set graph=false"
                )
        self.learner = learner
        self.stream = torch.cuda.Stream(learner.device)
        self.memory = torch.cuda.graph_pool_handle()
        self.made = torch.zeros((), dtype=torch.int64, device=learner.device)
        self.seen = 0
        self.parts: dict[Shape, RecordedPart | None] = {}  # None: seen once, and not recorded yet
        self.end: torch.cuda.CUDAGraph | None = None
        self.learnt: dict[str, nn.Parameter] = {}  # what the updates change
        self.gave_up = False  # what is not recorded yet runs as it is
        self.held: dict[int, Any] = {}  # what the recordings read from and others may forget

    def learn(self, batch: Batch, made: int) -> None:
        """One update."""
        self.made.fill_(made)
        self.stream.wait_stream(torch.cuda.current_stream(self.learner.device))
        with torch.cuda.stream(self.stream):
            for number, part in enumerate(batch.parts(self.learner.settings.accumulate)):
                self.micro_step(part, first=number == 0)
            self.update()
        torch.cuda.current_stream(self.learner.device).wait_stream(self.stream)

    def micro_step(self, batch: Batch, *, first: bool) -> None:
        """One part: as it is at first, so that its kernels are chosen and built, then recorded."""
        shape = (first, *((name, tuple(t.shape)) for name, t in batch.tensors().items()))
        new = shape not in self.parts
        if self.seen < WARM_UP or new or (self.gave_up and self.parts[shape] is None):
            self.parts.setdefault(shape, None)
            if len(self.parts) > _SHAPES:
                raise WeftError(
                    f"updates are recorded for at most {_SHAPES} shapes of batches; the next is "
                    f"{dict(shape[1:])}. Pad batches to fewer lengths, or set graph=false"
                )
            self.learner.micro_step(batch, first=first)
            self.check_gradients()
            return
        recorded = self.parts[shape]
        if recorded is None:
            own = {name: tensor.clone() for name, tensor in batch.tensors().items()}
            own = batch.with_tensors(own, reach=None)
            graph = self.record(lambda: self.learner.micro_step(own, first=first))
            if graph is None:
                return self.micro_step(batch, first=first)
            recorded = self.parts[shape] = RecordedPart(own, graph)
        places = recorded.batch.tensors()
        for name, tensor in batch.tensors().items():
            places[name].copy_(tensor, non_blocking=True)
        recorded.graph.replay()

    def update(self) -> None:
        """The end of an update, after its parts."""
        if self.seen < WARM_UP:
            self.learnt = self.with_gradients()
            self.learner.update(self.made)
            self.seen += 1
            if self.seen == WARM_UP:
                self.learner.keeps_gradients = True
                for parameter in self.learnt.values():
                    parameter.grad = torch.zeros_like(parameter)
            return
        if self.end is None and not self.gave_up:
            self.end = self.record(lambda: self.learner.update(self.made))
        if self.end is None:
            self.learner.update(self.made)
        else:
            self.end.replay()

    def with_gradients(self) -> dict[str, nn.Parameter]:
        """The parameters that have a gradient now."""
        named = self.learner.model.named_parameters()
        return {name: p for name, p in named if p.grad is not None}

    def check_gradients(self) -> None:
        """The recorded end changes what had a gradient when it was recorded, and nothing else."""
        later = self.with_gradients().keys() - self.learnt.keys()
        if self.seen >= WARM_UP and later:
            raise WeftError(
                f"{', '.join(sorted(later))} had no gradient in the first {WARM_UP} updates and "
                "has one now, which a recorded update would leave out; set graph=false"
            )

    def record(self, call: Callable[[], object]) -> torch.cuda.CUDAGraph | None:
        """Record a call; nothing is computed yet. None, after a warning, if that cannot be done."""
        reason = ""
        for _ in range(_TRIES):
            try:
                return self.recorded(call)
            except RuntimeError as error:
                if "captur" not in str(error):  # it fails without a recording, too
                    raise
                reason = str(error).splitlines()[0]
        warnings.warn(
            f"updates are no longer recorded: that failed {_TRIES} times ({reason}), as it does "
            "when other processes use the GPU. They run one by one, slower and with the same "
            "results",
            stacklevel=2,
        )
        self.gave_up = True
        return None

    def recorded(self, call: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """The recording of a call."""
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.learner.generator)
        # Only this thread is recorded: the one that prepares batches may ask for pinned memory.
        recording = torch.cuda.graph(
            graph, pool=self.memory, stream=self.stream, capture_error_mode="thread_local"
        )
        with holding(self.held), recording:
            call()
        return graph
