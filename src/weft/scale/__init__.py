"""Training on several devices and machines, by torch.distributed."""

from weft.scale.mesh import AXES, Mesh

__all__ = ["AXES", "Mesh"]
