"""Less Python between kernels: layers compiled to graphs, and whole updates recorded and replayed.

A small model on a GPU waits for Python, which starts its kernels one by one. `torch.compile` fuses
the kernels of a layer; layers that are alike share one compiled graph. A CUDA graph goes further:
an update, from the embedding to the optimiser, is recorded once and then replayed with a single
call. Both compute what the loop computes step by step.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import nn

from weft.errors import WeftError
from weft.mixers.base import Mixer
from weft.models.sublayer import Sublayer
from weft.objectives import Batch

if TYPE_CHECKING:
    from weft.training.learner import Learner

WARM_UP = 3  # updates before the recording: kernels are chosen, the optimiser's memory is made
_GRAPHS = 64  # per layer: shapes, train and evaluation, settings that differ by layer


def compile_layers(model: nn.Module) -> None:
    """Compile every sublayer. Graphs of earlier models are forgotten.

    Past its limit of graphs dynamo would go on uncompiled, silently; here it raises instead.
    """
    torch.compiler.reset()
    torch._dynamo.config.recompile_limit = _GRAPHS
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    for module in model.modules():
        if isinstance(module, Sublayer):
            module.compile(dynamic=False)


class Recorder:
    """Records the update of a learner, and replays it with other batches."""

    def __init__(self, learner: Learner) -> None:
        for mixer in learner.mixers:
            if type(mixer).advance is not Mixer.advance:
                raise WeftError(
                    f"{mixer.config.name} changes between updates, and a recorded update cannot; "
                    "set graph=false"
                )
        self.learner = learner
        self.stream = torch.cuda.Stream(learner.device)
        self.made = torch.zeros((), dtype=torch.int64, device=learner.device)
        self.seen = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.batch: Batch | None = None

    def learn(self, batch: Batch, made: int) -> None:
        """One update."""
        self.made.fill_(made)
        self.stream.wait_stream(torch.cuda.current_stream(self.learner.device))
        with torch.cuda.stream(self.stream):
            if self.seen < WARM_UP:
                self.learner.learn(batch, self.made)
                self.seen += 1
            else:
                self.take(batch)
                if self.graph is None:
                    self.record()
                self.graph.replay()
        torch.cuda.current_stream(self.learner.device).wait_stream(self.stream)

    def take(self, batch: Batch) -> None:
        """The batch into the place that the recording reads from."""
        given = batch.tensors()
        if self.batch is None:
            copies = {name: tensor.clone() for name, tensor in given.items()}
            self.batch = dataclasses.replace(batch, **copies)
            return
        places = self.batch.tensors()
        shapes = [{name: tuple(t.shape) for name, t in each.items()} for each in (places, given)]
        if shapes[0] != shapes[1]:
            raise WeftError(
                f"a recorded update takes batches of one shape; got {shapes[1]} after {shapes[0]}. "
                "Pad every batch to the same length, or set graph=false"
            )
        for name, place in places.items():
            place.copy_(given[name], non_blocking=True)

    def record(self) -> None:
        """Record the update; nothing is computed yet."""
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(self.learner.generator)
        with torch.cuda.graph(self.graph, stream=self.stream):
            self.learner.learn(self.batch, self.made)
