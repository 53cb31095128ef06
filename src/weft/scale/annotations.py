"""Automatic sharding: which axis of which parameter is split, by rules, as GShard annotates.

    annotate(model, {"*.embedding.table": ("tp", 0), "*.mlp.*": ("tp", 0)}, mesh["tp"])

A rule is a pattern of parameter names (as in `frozen`) and the mesh axis and tensor axis of a
split; the first rule that fits a parameter counts, and what no rule names stays a copy. Parameters
become DTensors: torch's operators then propagate placements and insert the collectives, so the
model computes what it did. Give the part of a mesh whose axes the rules name, `mesh["tp"]`: torch
takes long to propagate placements over many dimensions. For layers whose shares weft knows (heads,
hidden units, experts) the mesh of a training does this without rules, with fewer collectives.

Paper: Lepikhin et al. 2020, GShard, section 3.2, https://arxiv.org/abs/2006.16668
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor

from weft.errors import WeftError, suggest

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Rules = Mapping[str, tuple[str, int]]


def placements(
    model: nn.Module, rules: Rules, mesh: DeviceMesh
) -> dict[str, tuple[Placement, ...]]:
    """The placements of every parameter by name, over the dimensions of the mesh."""
    names = mesh.mesh_dim_names or ()
    used: set[str] = set()
    found = {}
    for name, parameter in model.named_parameters():
        rule = next((rule for rule in rules if fnmatchcase(name, rule)), None)
        each: list[Placement] = [Replicate() for _ in names]
        if rule is not None:
            used.add(rule)
            axis, dim = rules[rule]
            number = _axis(axis, names)
            each[number] = Shard(_dim(name, parameter, dim, mesh.size(number)))
        found[name] = tuple(each)
    unused = [rule for rule in rules if rule not in used]
    if unused:
        raise WeftError(f"no parameter is named {unused[0]!r}; {suggest(unused[0], found)}")
    return found


def annotate(model: nn.Module, rules: Rules, mesh: DeviceMesh) -> nn.Module:
    """Make the parameters DTensors with the placements of the rules, in place."""
    wanted = placements(model, rules, mesh)
    for name, parameter in list(model.named_parameters()):
        owner: Any = model.get_submodule(name.rpartition(".")[0])
        split = distribute_tensor(parameter.detach(), mesh, wanted[name])
        own = nn.Parameter(split, requires_grad=parameter.requires_grad)
        setattr(owner, name.rpartition(".")[2], own)
    return model


def _axis(axis: str, names: tuple[str, ...]) -> int:
    if axis not in names:
        raise WeftError(f"the mesh has no axis {axis!r}; {suggest(axis, names)}")
    return names.index(axis)


def _dim(name: str, parameter: Any, dim: int, ways: int) -> int:
    if not -parameter.dim() <= dim < parameter.dim():
        raise WeftError(f"{name} is {tuple(parameter.shape)} and has no axis {dim}")
    if parameter.shape[dim] % ways:
        raise WeftError(
            f"{ways} ranks split an axis evenly: axis {dim} of {name} {tuple(parameter.shape)} is "
            "not a multiple; choose another axis, or leave it a copy"
        )
    return dim % parameter.dim()
