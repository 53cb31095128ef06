"""Data parallel: what ranks do with their rows, and how their gradients become one.

A model is wrapped together with its loss, so that every call that reads parameters is inside:

    DDP       where parameters are copies: torch's buckets, summed instead of averaged
    FSDP2     where some are split (dp_shard, tp or ep): a unit for each mixer and feed-forward, the
              rest is one more; gradients are summed over dp_shard by FSDP2, and over the ranks that
              hold the same part by its all-reduce hook

Losses are sums over items with their number beside them, so that gradients are sums as well: what
divides them is the number of items of all ranks.

Papers: Li et al. 2020 (DDP), https://arxiv.org/abs/2006.15704; Zhao et al. 2023 (FSDP),
https://arxiv.org/abs/2304.11277
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.nn.parallel import DistributedDataParallel

from weft.feedforward import FeedForward
from weft.layers.penalty import penalties
from weft.mixers import Mixer
from weft.objectives import Batch, Loss, Objective
from weft.scale.experts import SplitExperts, expert_modules

Autocast = Callable[[], AbstractContextManager[object]]


class LossOf(nn.Module):
    """A batch to its loss, and the penalties of the model's modules in training."""

    def __init__(self, model: nn.Module, objective: Objective, autocast: Autocast) -> None:
        super().__init__()
        self.model, self.objective, self.autocast = model, objective, autocast

    def forward(self, batch: Batch, generator: torch.Generator) -> tuple[Loss, Tensor | None]:
        """The loss in the precision of `autocast`."""
        with self.autocast():
            loss = self.objective.loss(self.model, batch, generator)
        return loss, penalties(self.model) if self.model.training else None


class Spread:
    """The loss of a model over the ranks of a mesh, and the sum of its gradients."""

    def __init__(self, loss_of: LossOf, mesh: DeviceMesh) -> None:
        self.mesh, self.plain = mesh, loss_of
        self.copies = [axis for axis in ("dp_replicate", "ep", "cp") if mesh[axis].size() > 1]
        split = any(mesh[axis].size() > 1 for axis in ("dp_shard", "tp", "ep"))
        self.compute: Any = loss_of
        if split and (self.copies or mesh["dp_shard"].size() > 1):
            self._shard()
        elif self.copies:
            self._copy()

    def __call__(self, batch: Batch, generator: torch.Generator) -> tuple[Loss, Tensor | None]:
        return self.compute(batch, generator)

    def summing(self, last: bool) -> AbstractContextManager[object]:
        """Surrounds a backward pass: gradients travel with the `last` one of an update."""
        if isinstance(self.compute, DistributedDataParallel):
            return nullcontext() if last else self.compute.no_sync()
        if isinstance(self.compute, FSDPModule):
            self.compute.set_requires_gradient_sync(last)
        return nullcontext()

    def _copy(self) -> None:
        """DDP over all ranks that are not of one tp group; here there is no tp."""
        self.compute = DistributedDataParallel(
            self.plain, forward_sync_buffers=False, find_unused_parameters=True
        )
        # torch reads the annotations of a hook, and a lambda has none.
        self.compute.register_comm_hook(None, lambda _, bucket: _summed(bucket))

    def _shard(self) -> None:
        # torch warns of views among outputs, which must not be changed in place; ours are not.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        own = self.mesh["dp_shard"]
        for each in expert_modules(self.plain):
            # Rows of all ep ranks came to these experts, so ep is not summed over.
            self._unit(each, own, [axis for axis in self.copies if axis != "ep"])
        for each in _units(self.plain.model):
            self._unit(each, own, self.copies)
            if hasattr(each, "first_rows"):
                register_fsdp_forward_method(each, "first_rows")
        self._unit(self.plain, own, self.copies)
        self.compute = self.plain

    def _unit(self, module: nn.Module, mesh: DeviceMesh, axes: Iterable[str]) -> None:
        groups = [self.mesh[axis].get_group() for axis in axes]
        # Penalties read parameters after the module's forward, so they stay until backward.
        again = not any(callable(getattr(each, "penalty", None)) for each in module.modules())
        fully_shard(module, mesh=mesh, reshard_after_forward=again)

        def add(gradient: Tensor) -> None:
            for group in groups:
                reduce(gradient, group)

        assert isinstance(module, FSDPModule)
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
        if groups:
            module.set_all_reduce_hook(add)


def reduce(gradient: Tensor, group: dist.ProcessGroup) -> None:
    """Sum a gradient over the ranks that hold the same part, in place."""
    dist.all_reduce(gradient, group=group)


def _summed(bucket: Any) -> torch.futures.Future[Tensor]:
    """A bucket of gradients, summed: DDP's own hook takes the mean."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])


def _units(model: nn.Module) -> list[nn.Module]:
    """The outermost mixers and feed-forwards; none whose parameters another one has as well."""
    found: list[nn.Module] = []

    def look(module: nn.Module) -> None:
        for child in module.children():
            if isinstance(child, Mixer | FeedForward):
                found.append(child)
            elif not isinstance(child, SplitExperts):
                look(child)

    if any(getattr(each, "recompute", None) == "reversible" for each in _configs(model)):
        return []  # their backward pass calls them again, inside of one of torch's
    look(model)
    owners: dict[int, set[int]] = {}
    for module in found:
        for parameter in module.parameters():
            owners.setdefault(id(parameter), set()).add(id(module))
    shared = {owner for each in owners.values() if len(each) > 1 for owner in each}
    once = {id(each): each for each in found if list(each.parameters())}
    return [each for number, each in once.items() if number not in shared]


def _configs(model: nn.Module) -> list[Any]:
    return [each.config for each in model.modules() if hasattr(each, "config")]
