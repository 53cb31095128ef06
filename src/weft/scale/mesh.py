"""The mesh: how many ways each axis of a training is split, and the processes that do it.

    dp_replicate   rows of a batch; parameters are copies (DDP)
    dp_shard       rows of a batch; parameters, gradients and moments are split (FSDP2)
    ep             rows of a batch; the experts of routed feed-forwards are split
    cp             tokens of a sequence (weft.scale.context)
    tp             heads and hidden units

The product of the axes is the number of processes. Their names and order are torchtitan's: ranks
that differ in tp alone are adjacent, since tp exchanges most. Ranks that differ in cp or tp alone
read the same rows.
"""

from __future__ import annotations

import dataclasses
import os
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from weft.config import config
from weft.errors import WeftError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

AXES = ("dp_replicate", "dp_shard", "ep", "cp", "tp")  # outermost first
DATA = ("dp_replicate", "dp_shard", "ep")  # ranks that differ in these read different rows
REST = -1


@config
class Mesh:
    """Ways per axis; one of dp_replicate and dp_shard may be -1: as many as processes are left."""

    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1
    cp: int = 1
    ep: int = 1
    # Of cp: one run of a sequence per rank, or two; "auto": as the patterns of the model say.
    balance: Literal["auto", "none", "head_tail"] = "auto"

    def __post_init__(self) -> None:
        for name in AXES:
            ways = getattr(self, name)
            if ways < 1 and not (ways == REST and name in ("dp_replicate", "dp_shard")):
                raise WeftError(
                    f"{name} counts ways to split, at least 1 (dp_replicate or dp_shard may be "
                    f"-1: what is left); got {name}={ways}"
                )
        if self.balance not in ("auto", "none", "head_tail"):
            raise WeftError(f"balance is 'auto', 'none' or 'head_tail'; got {self.balance!r}")
        if self.dp_replicate == self.dp_shard == REST:
            raise WeftError("one of dp_replicate and dp_shard may be -1; got both")

    @property
    def several(self) -> bool:
        """Whether there is more than one process."""
        return any(ways != 1 for ways in self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The ways of `AXES`, in their order."""
        return tuple(getattr(self, name) for name in AXES)

    @property
    def readers(self) -> int:
        """How many ranks read different rows of a batch."""
        return prod(getattr(self, name) for name in DATA)

    def fitted(self, processes: int) -> Mesh:
        """The mesh with -1 filled in; refuses one that does not fit this many processes."""
        known = prod(ways for ways in self.sizes if ways != REST)
        sizes = dict(zip(AXES, self.sizes, strict=True))
        if REST in self.sizes and processes % known == 0:
            rest = {name: processes // known for name, ways in sizes.items() if ways == REST}
            return dataclasses.replace(self, **rest)
        if known == processes and REST not in self.sizes:
            return self
        shown = " · ".join(f"{name}={ways}" for name, ways in sizes.items() if ways != 1) or "1"
        found = f"{known} of them" if REST not in self.sizes else f"multiples of {known}"
        raise WeftError(
            f"the axes of a mesh multiply to the number of processes: {shown} needs {found}, and "
            f"there {'is' if processes == 1 else 'are'} {processes}; start with torchrun "
            f"--nproc-per-node {known}, or change [training.mesh] (dp_replicate = -1 takes what is "
            "left)"
        )

    def build(self, device: str = "cpu") -> DeviceMesh:
        """torch's DeviceMesh over all processes, with a dimension for each of `AXES`.

        Processes that have no process group yet join the one that torchrun's variables describe;
        `device` is "cpu" (gloo) or "cuda" (NCCL; the GPU of the local rank).
        """
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        if not dist.is_initialized():
            self.fitted(processes())
            join(device)
        fitted = self.fitted(dist.get_world_size())
        return init_device_mesh(device, fitted.sizes, mesh_dim_names=AXES)


def processes() -> int:
    """How many processes torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Which of the processes this is, from 0."""
    return int(os.environ.get("RANK", "0"))


def leave() -> None:
    """Leave the process group, where there is one."""
    import sys

    if "torch.distributed" not in sys.modules:
        return
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def join(device: str, **given: Any) -> None:
    """Join the process group of torchrun's variables: gloo for the CPU, with NCCL for GPUs."""
    import torch
    import torch.distributed as dist

    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "localhost")):
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_PORT", "29500")
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, **{**_after_a_restart(), **given})


def _after_a_restart() -> dict[str, Any]:
    """A part of torchrun's store that no process before a restart has written to.

    On one machine torchrun keeps its store over restarts (`static` rendezvous), and with it the
    addresses of processes that are gone. With several, each round has a store of its own, and the
    machines do not count restarts alike.
    """
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if restarts == "0" or os.environ.get("GROUP_WORLD_SIZE") != "1":
        return {}
    store, rank, processes = next(rendezvous("env://"))
    own = PrefixStore(f"restart {restarts}", store)
    return {"store": own, "rank": rank, "world_size": processes}
