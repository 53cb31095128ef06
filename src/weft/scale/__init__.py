"""Training on several devices and machines, by torch.distributed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from weft.scale.mesh import AXES, Mesh

if TYPE_CHECKING:
    from weft.scale.annotations import annotate, placements
    from weft.scale.costs import ScalePlan, plan

__all__ = ["AXES", "Mesh", "ScalePlan", "annotate", "placements", "plan"]

_LATER = {
    "annotate": "annotations",
    "placements": "annotations",
    "ScalePlan": "costs",
    "plan": "costs",
}


def __getattr__(name: str) -> Any:
    """The mesh alone loads no torch."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"weft.scale.{_LATER[name]}"), name)
