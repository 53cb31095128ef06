"""Parameters that are split over ranks (DTensor), and modules that compute with their own part.

Between calls every parameter is a DTensor, so that torch's optimiser, FSDP2 and checkpoints see it
whole. While the module runs, `locally` puts the rank's part in its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

Splits = dict[str, int | None]  # tensor of a module -> the axis that is split; None: copies


def placed(tensor: Tensor, mesh: DeviceMesh, axis: int | None) -> DTensor:
    """The part of this rank, of a tensor that all ranks hold whole and alike, as a DTensor."""
    placement: Placement = Replicate() if axis is None else Shard(axis)
    ways, rank = mesh.size(), mesh.get_local_rank()
    own = tensor if axis is None else tensor.chunk(ways, axis)[rank]
    own = own.detach().clone(memory_format=torch.contiguous_format)
    return DTensor.from_local(own, mesh, [placement], run_check=False)


def own_part(parameter: Tensor) -> Tensor:
    """The rank's part; the gradient of a copy is summed, since each rank uses it for a part."""
    assert isinstance(parameter, DTensor)
    if isinstance(parameter.placements[-1], Shard):
        return parameter.to_local()
    # Redistributing a copy moves nothing forward; backward it sums the gradients.
    summed = parameter.redistribute(placements=parameter.placements)
    return summed.to_local(grad_placements=[Partial()])


class RankParts(nn.Module):
    """What a module needs to compute with its part; a child of it, without parameters."""

    def __init__(self, mesh: DeviceMesh, splits: Splits, shares: dict[str, float]) -> None:
        super().__init__()
        self.mesh, self.splits, self.shares = mesh, splits, shares
        self.whole: list[tuple[nn.Module, str, Any]] = []

    def __deepcopy__(self, memo: Any) -> RankParts:
        return RankParts(self.mesh, self.splits, self.shares)  # a mesh cannot be copied

    def put(self, module: nn.Module) -> None:
        """Replace the DTensors of a module by the rank's parts."""
        for name, parameter in list(module.named_parameters(remove_duplicate=False)):
            if not isinstance(parameter, DTensor) or name not in self.splits:
                continue
            path, _, key = name.rpartition(".")
            owner = module.get_submodule(path)
            part = own_part(parameter)
            if name in self.shares:
                part = part * self.shares[name]
            self.whole.append((owner, key, parameter))
            owner._parameters[key] = part  # pyright: ignore[reportArgumentType]

    def restore(self) -> None:
        """Undo `put`."""
        while self.whole:
            owner, key, parameter = self.whole.pop()
            owner._parameters[key] = parameter

    @contextmanager
    def locally(self, module: nn.Module) -> Iterator[None]:
        """Inside the `with`, the module computes with the rank's parts."""
        self.put(module)
        try:
            yield
        finally:
            self.restore()


def split_buffers(model: nn.Module) -> dict[str, DTensor]:
    """The saved buffers of a model whose ranks hold parts, as DTensors on the parts themselves."""
    found, kept = {}, model.state_dict(keep_vars=True).keys()
    for path, module in model.named_modules():
        split = module._modules.get("split")
        if not isinstance(split, RankParts):
            continue
        for name, buffer in module.named_buffers():
            axis, whole = split.splits.get(name), f"{path}.{name}" if path else name
            if axis is not None and whole in kept:
                found[whole] = DTensor.from_local(buffer, split.mesh, [Shard(axis)])
    return found
